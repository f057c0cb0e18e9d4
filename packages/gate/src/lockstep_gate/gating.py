"""Gating a training: record it, compare it with the golden of the nearest machine, replace that if asked to."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from lockstep.compare import (
    Comparison,
    Kind,
    Manner,
    compare_recordings,
    headline,
    lines_below,
    what_next,
)
from lockstep.errors import ExitCode, RecordingError, UsageError
from lockstep.plugin import VERSION
from lockstep.recordings import Options, open_recording
from lockstep.terminal import counted
from lockstep_gate.golden import (
    CALIBRATION,
    RECORDING,
    Entry,
    Golden,
    Variant,
    replacing_variant,
)
from lockstep_gate.nearest import Machine, differing_words, machine_of, nearest
from lockstep_gate.trainings import Training

STEPS = "0:2"
"""What is recorded for a new golden where nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class Update:
    """That the golden is to be replaced.

    because: The reason, kept in the golden's history.
    force: Also where the verdict is a fault, or nothing can be said.
    calibrates: Trains a second time with every result rounded at random, for the noise that each site may have.
    """

    because: str
    force: bool = False
    calibrates: bool = True


@dataclass(frozen=True, slots=True)
class Gated:
    """The result of a gate.

    golden: What the training was held against.
    candidate: Its recording.
    comparison: What comparing said; None where there was no golden to compare with.
    variant: The golden that was chosen, "" for none.
    chosen_words: Why that one, where it is of another machine; else "".
    failed: Why the training did not end well, or "".
    updated: The variant that was made or replaced, "" for none.
    refused: Why it was not replaced although that was asked for, or "".
    allow_crash: Whether a training that did not end well may agree.
    """

    golden: Path
    candidate: Path
    comparison: Comparison | None = None
    variant: str = ""
    chosen_words: str = ""
    failed: str = ""
    updated: str = ""
    refused: str = ""
    allow_crash: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """As of `compare`; 0 where the golden was replaced, 2 where a training that failed shows no difference."""
        if self.updated:
            return ExitCode.AGREES
        if self.comparison is None:
            return ExitCode.FAILED
        return self.comparison.unless(self.refused).exit_code()

    @property
    def headline(self) -> str:
        """The result, in one sentence."""
        if self.comparison is None:
            return self.failed or f"the golden {self.updated} was made"
        return headline_of(self.comparison)


def headline_of(comparison: Comparison) -> str:
    """The verdict, where and why, in one line, as `compare` prints them first."""
    return ": ".join([headline(comparison), *lines_below(comparison)[:1]])


def gate_training(
    golden: Golden,
    training: Training,
    candidate: Path,
    *,
    steps: str = "",
    ends_early: bool = True,
    update: Update | None = None,
    allow_crash: bool = False,
    say: Callable[[str], None] = lambda words: None,
) -> Gated:
    """Train once more and hold it against the golden of the machine that is most like this one.

    golden: What is expected; without variants only an update makes sense.
    training: What trains.
    candidate: Where its recording goes; one that is there is replaced.
    steps: Which steps are recorded; "" for those of the golden.
    ends_early: Whether a new golden's training ends behind its last recorded step.
    update: Replace the golden; None to leave it.
    allow_crash: Whether a training that crashed may agree in what was recorded of it; no golden is made of one.
    say: Is told what is being done.

    Raises UsageError if there is no golden and none is to be made, or the steps are others than the golden's. Raises
    RecordingError if the golden is damaged.
    """
    if not golden.variants and update is None:
        raise UsageError(
            f"{golden.path}: there is no golden; make one with --update --because 'why it is right'"
        )
    if golden.is_plain_recording and update is not None:
        raise UsageError(
            f"{golden.path}: is a plain recording, which keeps no history; give a new folder to make a golden in"
        )
    options = _options(golden.variants[:1], steps, ends_early=ends_early, update=update)
    failed = training.record(candidate, options)
    if failed and _is_empty(candidate):
        return Gated(golden.path, candidate, failed=failed)
    here = machine_of(open_recording(candidate))
    if golden.variants:
        variant = nearest(golden.variants, here)
        own = _options([variant], steps, ends_early=ends_early, update=update)
        if own != options:  # which machine this is, the training has told
            say(f"training once more, as {variant.name} was recorded")
            options, failed = own, training.record(candidate, own)
            if failed and _is_empty(candidate):
                return Gated(golden.path, candidate, failed=failed)
    gated = Gated(golden.path, candidate, failed=failed, allow_crash=allow_crash)
    if golden.variants:
        gated = _compared(gated, variant, here)
    if update is None:
        return gated
    refused = _why_not(gated, update)
    if refused:
        return dataclasses.replace(gated, refused=refused)
    _replace(golden, training, gated, options, update, here, say)
    return dataclasses.replace(gated, updated=here.name)


def _is_empty(candidate: Path) -> bool:
    """Whether nothing of a training was recorded."""
    try:
        return not any(rank.steps for rank in open_recording(candidate).ranks.values())
    except RecordingError:
        return True


def _options(
    like: Sequence[Variant], steps: str, *, ends_early: bool, update: Update | None
) -> Options:
    """As a variant of the golden was recorded, so that the two can be held against each other."""
    if not like:
        return Options(steps=steps or STEPS, exit_after=ends_early)
    known = like[0].recording.manifest.options
    if steps and steps != known.steps and update is None:
        raise UsageError(
            f"--steps {steps}: the golden holds {known.steps}; leave it out, or replace the golden with --update"
        )
    return dataclasses.replace(
        known, steps=steps or known.steps, calibrate=False, emulate="", redact=False
    )


def _compared(gated: Gated, variant: Variant, here: Machine) -> Gated:
    candidate = open_recording(gated.candidate)
    found = compare_recordings(
        variant.recording,
        candidate,
        calibration=variant.calibration,
        allow_crash=gated.allow_crash,
    )
    manner = Manner(by_default=variant.calibration is None, is_golden=True)
    following = what_next(found, variant.recording, candidate, manner)
    comparison: Comparison = dataclasses.replace(found, what_next=following)
    comparison = comparison.unless("" if gated.allow_crash else gated.failed)
    other = differing_words(machine_of(variant.recording), here)
    words = f"the nearest of this golden's: {other}" if other else ""
    return dataclasses.replace(
        gated, comparison=comparison, variant=variant.name, chosen_words=words
    )


def _why_not(gated: Gated, update: Update) -> str:
    """Why the golden stays; "" where it may be replaced."""
    if gated.failed:
        return f"{gated.failed}, and no golden is made of that"
    if update.force or gated.comparison is None:
        return ""
    if gated.comparison.exit_code() == ExitCode.FAILED:
        return "the two cannot be compared, so nothing proves the new one; --accept-fault replaces it all the same"
    if any(origin.kind in (Kind.FAULT, Kind.RECOMPUTED) for origin in gated.comparison.origins):
        return "the verdict is a fault; --accept-fault replaces it all the same"
    return _hidden_words(gated.comparison)


def _hidden_words(comparison: Comparison) -> str:
    """Why an accepted difference may hide a fault, or "".

    Values after it differ anyway, so a call that only one run makes there, as of a ReLU or of clipping, is judged by
    nothing.
    """
    if not comparison.origins:
        return ""
    lone = [
        one for one in comparison.unaligned_calls
        if not (one.beside or one.around or one.recomputed)
    ]  # fmt: skip
    others = len(comparison.other_classes)
    if lone:
        at = f" at {lone[0].source}" if lone[0].source else ""
        what = f"{counted(sum(one.count for one in lone), 'call')} that only one run makes ({lone[0].op}{at}"
        what += f" in the {lone[0].side})"
    elif comparison.missing and not comparison.unaligned_calls:
        what = f"{counted(comparison.missing, 'tensor')} that only one run has"
    elif others:
        what = f"{counted(others, 'module')} of a different class ({comparison.other_classes[0]})"
    else:
        return ""
    return (
        f"besides the difference that it names there are {what}, which nothing judges; change one thing at a time,"
        " or --accept-fault replaces it all the same"
    )


def _replace(
    golden: Golden,
    training: Training,
    gated: Gated,
    options: Options,
    update: Update,
    here: Machine,
    say: Callable[[str], None],
) -> None:
    entry = _entry(gated, update)
    with replacing_variant(golden, here.name, entry) as fresh:
        shutil.copytree(gated.candidate, fresh / RECORDING)
        if not update.calibrates:
            return
        say("training once more with every result rounded at random, for the noise of each site")
        calibrating = dataclasses.replace(options, calibrate=True)
        failed = training.record(fresh / CALIBRATION, calibrating)
        if failed:
            raise RecordingError(
                golden.path, f"the golden stays: calibrating, {failed}",
                advice="mend the training, or leave calibrating out with --no-calibration",
            )  # fmt: skip


def _entry(gated: Gated, update: Update) -> Entry:
    comparison = gated.comparison
    return Entry(
        because=update.because,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=VERSION,
        verdict="new" if comparison is None else comparison.verdict.value,
        headline="" if comparison is None else headline_of(comparison),
        forced=update.force,
        commit=open_recording(gated.candidate).manifest.git.get("commit", ""),
    )
