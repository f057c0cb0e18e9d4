"""A round of the search: both trainings recorded once more, with new windows, and compared."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click

from lockstep.compare import Comparison, environment_of, training_words
from lockstep.errors import SIGNALLED, RecordingError, UsageError
from lockstep.files import MASK
from lockstep.launch import Event, launch
from lockstep.recordings import Options, Recording, Windows, kept_windows, open_recording
from lockstep.terminal import listed, shell_line
from lockstep_zoom.bracket import Bracket, Judged
from lockstep_zoom.journal import Journal
from lockstep_zoom.judging import judged_steps

REFERENCE, CANDIDATE = "reference", "candidate"
_INTERRUPTED = (SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGTERM)


class RunsAgain(Protocol):
    """A training that can be run again; `name` tells it from others."""

    @property
    def name(self) -> str:
        """Its command."""
        ...

    def record(
        self, directory: Path, windows: Windows, source: Path | None, hear: Callable[[Event], None]
    ) -> None:
        """Run the training as far as its last window, and record it; `source` holds the states that it starts from.

        Raises LockstepError if it cannot be started, or nothing was recorded.
        """
        ...


@dataclass(frozen=True, slots=True)
class Training:
    """A training that can be run again as it was recorded.

    command: Its words.
    folder: Where it runs.
    environment: Variables that decide about numbers.
    options: As it was recorded.
    """

    command: tuple[str, ...]
    folder: Path
    environment: dict[str, str]
    options: Options

    @classmethod
    def of(cls, recording: Recording, command: Sequence[str] = ()) -> Training:
        """Return the training of a recording, or a command that takes its place in this folder.

        Raises UsageError if the recording does not hold its command.
        """
        manifest = recording.manifest
        if command:
            return cls(tuple(command), Path.cwd(), {}, manifest.options)
        words = training_words(manifest)
        if words is None or any(MASK in word for word in words):
            raise UsageError(
                f"{recording.path}: does not hold the training's whole command; record it with lockstep record,"
                " or for the candidate give the command after --"
            )
        kept = Path(manifest.cwd)
        folder = kept if kept.is_absolute() and kept.is_dir() else Path.cwd()
        return cls(tuple(words), folder, environment_of(recording), manifest.options)

    @property
    def name(self) -> str:
        """The command as it is typed, and its folder."""
        return f"{self.folder}: {shell_line(self.command)}"

    def record(
        self, directory: Path, windows: Windows, source: Path | None, hear: Callable[[Event], None]
    ) -> None:
        """Run the command as `RunsAgain` says."""
        options = dataclasses.replace(
            self.options, steps=windows.steps, states_at=windows.starts,
            set_from="" if source is None else str(source.absolute()), save="program", exit_after=True,
            step_log=True, calibrate=False, redact=False,
        )  # fmt: skip
        ended = launch(
            self.command, directory.absolute(), options, force=True, hear=hear, cwd=self.folder, stdout=2,
            adjust=lambda environment: environment | self.environment,
        )  # fmt: skip
        if ended.code in _INTERRUPTED:
            raise click.Abort
        if ended.why_nothing:
            raise RecordingError(
                directory, f"nothing was recorded of {shell_line(self.command)} (exit code {ended.code}):"
                f" {ended.why_nothing}",
            )  # fmt: skip


@dataclass(slots=True)
class Rounds:
    """Records and compares rounds; of their recordings only the pair that answers stays.

    reference, candidate: The two trainings.
    anchors: Steps that agree in the given recordings, at which each run begins a window too.
    folder: Where recordings go.
    journal: What has been done.
    compare: Compares two recordings.
    hear, say: Are given events of the runs, and sentences for the user.
    """

    reference: RunsAgain
    candidate: RunsAgain
    anchors: frozenset[int]
    folder: Path
    journal: Journal
    compare: Callable[[Path, Path], Comparison]
    hear: Callable[[Event], None]
    say: Callable[[str], None]
    count: int = 0
    answering: tuple[Path, Path] | None = None
    _compared: dict[Path, Comparison] = field(default_factory=dict)

    def look(self, bracket: Bracket, chosen: tuple[int, ...]) -> Judged:
        """Record both trainings with a window of one step at each of these, and return the answer."""
        self.count += 1
        round_folder = self.folder / f"round-{self.count}"
        pair = (round_folder / REFERENCE, round_folder / CANDIDATE)
        known = self.journal.judgement(chosen)
        if known is None:
            self.say(f"round {self.count}: windows at {_steps(chosen)}")
            known = self._judged(pair, self._windows(bracket, chosen))
            self.journal.judged(chosen, known)
        else:
            self.say(f"round {self.count}: windows at {_steps(chosen)}: known from the journal")
        self.say(f"round {self.count}: {_words(known)}")
        self._keep(pair, known, is_shown=bracket.is_shown)
        return known

    def compared(self, pair: tuple[Path, Path]) -> Comparison:
        """Return the comparison of a pair."""
        if pair[1] not in self._compared:
            self._compared[pair[1]] = self.compare(*pair)
        return self._compared[pair[1]]

    def _windows(self, bracket: Bracket, chosen: tuple[int, ...]) -> Windows:
        before = {step for step in (0, bracket.sound) if step in self.anchors or step > 0}
        steps = sorted({*before, *chosen})
        # A second step, as means of weights are measured when it begins.
        ends = [
            min(step + 2, after) for step, after in zip(steps, [*steps[1:], math.inf], strict=True)
        ]
        return Windows.parse(
            ",".join(f"{step}:{end}" for step, end in zip(steps, ends, strict=True))
        )

    def _judged(self, pair: tuple[Path, Path], windows: Windows) -> Judged:
        for path, training, source in (
            (pair[0], self.reference, None),
            (pair[1], self.candidate, pair[0]),
        ):
            name = os.fspath(path.relative_to(self.folder))
            if not self.journal.is_recorded(name):
                path.parent.mkdir(exist_ok=True)
                training.record(path, windows, source, self.hear)
                if source is None:
                    _check(path, windows)
                self.journal.recorded(name)
        return judged_steps(self.compared(pair))

    def _keep(self, pair: tuple[Path, Path], judged: Judged, *, is_shown: bool) -> None:
        """Keep the pair that shows the first bad step so far; without any, the newest."""
        shows = judged.bad is not None and judged.is_recorded
        superseded = pair
        if shows or not is_shown:
            superseded, self.answering = self.answering or pair, pair
        if superseded != self.answering:
            shutil.rmtree(superseded[0].parent, ignore_errors=True)


def _check(reference: Path, windows: Windows) -> None:
    """Raise where the reference did not come as far as the windows."""
    recording = open_recording(reference)
    begun = {int(step) for step in kept_windows(recording).starts.split(",")}
    missing = [step for step in windows.starts.split(",") if int(step) not in begun]
    if missing:
        code = recording.manifest.exit_code
        raise RecordingError(
            reference, f"no window began at step {listed(missing)}: the reference ended before (exit code {code})",
            advice="run it as it was recorded, or record both trainings again",
        )  # fmt: skip


def _steps(steps: Sequence[int]) -> str:
    return f"step {listed([str(one) for one in steps], len(steps))}"


def _words(judged: Judged) -> str:
    if judged.bad is not None:
        by = "" if judged.is_recorded else ", by the step log"
        return f"step {judged.bad} is bad{by}"
    return "all agree" if not judged.untold else "none is bad, and not all could be judged"
