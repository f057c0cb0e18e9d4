"""Run the trials of a search: a few timed steps, or steps that are recorded and compared."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lockstep.compare import Comparison, headline
from lockstep.errors import ExitCode, UsageError
from lockstep.launch import launch
from lockstep.recordings import Options, Role, open_recording
from lockstep.terminal import tell
from lockstep_tune.settings import KNOBS, Settings
from lockstep_tune.switches import AS_IT_IS, State
from lockstep_tune.trials import INTERRUPTED, Trials, in_short, results_of
from lockstep_tune.tuned_run import NoPlaceError, TimedRun, time_steps
from lockstep_tune.tuning import Numbers

_RECORDED = "0:2"


def error_of(compared: Comparison) -> float:
    """Return the largest relative L2 difference of a loss, or of all gradients of a step together.

    Gradients are taken as one vector: of a bias before a normalisation the gradient is zero but for rounding, and its
    own relative difference says nothing. Infinite where neither was compared, or a number is not finite.
    """
    errors: list[float] = []
    gradients: dict[tuple[str, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for one in results_of(compared):
        left, right = one.pair.reference, one.pair.candidate
        if left is None or right is None:
            continue  # a call that one run alone makes; the parameter's whole gradient is compared
        if left.role is Role.LOSS:
            errors.append(one.difference)
        else:
            norm = max(
                side.statistics.norm if side.statistics else math.inf for side in (left, right)
            )
            squares = (one.difference * norm) ** 2, norm**2
            gradients[left.rank, left.step][left.name] = squares
    for found in gradients.values():
        apart, whole = (math.fsum(column) for column in zip(*found.values(), strict=True))
        errors.append(math.sqrt(apart / whole) if whole else 0.0)
    return max(errors, default=math.inf) if all(map(math.isfinite, errors)) else math.inf


class TunedTrials:
    """Times and judges the command with settings.

    command: What is run.
    steps: The first step that is timed, and the one after the last.
    accept: The largest error of another precision throughout that is kept; None to keep none.
    seed: From which random numbers are drawn; None to leave that to the script.
    place: Where recordings go for a time.
    """

    def __init__(
        self,
        command: Sequence[str],
        steps: tuple[int, int],
        accept: float | None,
        seed: int | None,
        place: Path,
    ) -> None:
        self._command, self._steps, self._accept = command, steps, accept
        self._seed, self._place = seed, place
        self._streams: dict[str, Any] = {"stdout": sys.stderr}
        self._trials: Trials | None = None

    def told(self) -> TimedRun:
        """Return the facts that the command tells as it is."""
        return self._timed(Settings())

    def step_s(self, settings: Settings) -> float:
        """Seconds of a step.

        Raises RunFailedError if the command fails. Raises NoPlaceError if a knob has no effect on it.
        """
        found = self._timed(settings)
        for name in found.without_place:
            raise NoPlaceError(f"the training has no {KNOBS[name].place}")
        return found.step_s

    def _timed(self, settings: Settings) -> TimedRun:
        return time_steps(
            self._command, settings, self._steps, self._place, self._seed, **self._streams
        )

    def numbers(self, settings: Settings) -> Numbers:
        """Return the comparison of the first two steps with those of the command as it is."""
        compared, _ = self._reference().compared(State(str(settings), settings=settings))
        if isinstance(compared, str):
            return Numbers(False, compared)
        if compared.other_precision_alone:
            return self._of_other_precision(compared)
        return Numbers(compared.exit_code(strict=True) == ExitCode.AGREES, headline(compared))

    def noise(self, step_s: float) -> float:
        """Return how far another run as it is lies from this time of a step, as a share of the shorter one."""
        again_s = self.step_s(Settings())
        return abs(again_s - step_s) / min(again_s, step_s)

    def check_repeats(self) -> bool:
        """Compare the command with itself as it is; true where it agrees.

        Raises UsageError if it differs, or cannot be recorded: then no knob can be judged.
        """
        compared, _ = self._reference().compared(AS_IT_IS)
        if isinstance(compared, str) or compared.exit_code(strict=True) != ExitCode.AGREES:
            words = compared if isinstance(compared, str) else in_short(compared)
            seeded = "" if self._seed is not None else "; if it draws random numbers, pass --seed 0"
            raise UsageError(
                f"two runs of the command as it is do not agree, so no knob can be judged: {words}{seeded}"
            )
        return True

    def _of_other_precision(self, compared: Comparison) -> Numbers:
        error = error_of(compared)
        changes = ", ".join(one.name for one in compared.uniform[:2])
        words = (
            f"another precision throughout ({changes}), losses and gradients up to {error:.2%} off"
        )
        if self._accept is None or not error <= self._accept:
            wanted = "" if self._accept is None else f", more than --accept {self._accept:.2%}"
            return Numbers(False, words + wanted, error)
        return Numbers(True, words, error)

    def _reference(self) -> Trials:
        if self._trials is None:
            folder = self._place / "reference"
            options = Options(steps=_RECORDED, exit_after=True, seed=self._seed)
            ended = launch(self._command, folder, options, force=True, hear=tell, **self._streams)
            if ended.code in INTERRUPTED:
                raise click.Abort
            if ended.code or ended.why_nothing:
                why = ended.why_nothing or f"it ended with exit code {ended.code}"
                raise UsageError(f"the command could not be recorded as it is: {why}")
            reference = open_recording(folder)
            self._trials = Trials(reference, self._command, self._place, self._streams)
        return self._trials
