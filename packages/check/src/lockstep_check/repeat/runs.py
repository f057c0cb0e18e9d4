"""Running a command several times, each recorded, and holding the recordings against the first."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.compare import Comparison, compare_recordings
from lockstep.errors import ExitCode
from lockstep.recordings import Options
from lockstep_check.repeat.first_difference import FirstDifference, first_difference
from lockstep_check.running import run_training

_SEED = 0


@dataclass(frozen=True, slots=True)
class Repeats:
    """Several runs of one command.

    runs: How many.
    first: Where two of them part first; None where all are equal bit by bit.
    comparison: What `compare` says of that pair; None where there is none.
    steps: Steps that were recorded of each.
    seeded: The same of runs with all generators seeded and deterministic kernels asked for; None where there were none.
    """

    runs: int
    first: FirstDifference | None
    comparison: Comparison | None
    steps: int
    seeded: Repeats | None = None

    @property
    def within_noise(self) -> bool | None:
        """Whether what differs is no more than rounding explains; None where `compare` cannot say."""
        code = None if self.comparison is None else self.comparison.exit_code()
        return None if code == ExitCode.FAILED else code == ExitCode.AGREES


def repeat(
    command: Sequence[str], times: int, steps: str, folder: Path | None, **streams: Any
) -> Repeats:
    """Run a command so many times, and once more with seeds where the runs differ.

    steps: What is recorded of each run, which ends behind it.
    folder: Where recordings are kept; None to drop them.
    streams: As `lockstep.cli.record.run_recorded` takes them.

    Raises UsageError if the command cannot be started, fails, or trains nothing.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-check-") as name:
        place = Path(name) if folder is None else folder.absolute()
        place.mkdir(parents=True, exist_ok=True)
        plain = _round(
            command, times, Options(steps=steps, exit_after=True), place / "run", streams
        )
        if plain.first is None:
            return plain
        options = Options(steps=steps, exit_after=True, seed=_SEED)
        seeded = _round(command, times, options, place / "seeded", streams)
        return Repeats(plain.runs, plain.first, plain.comparison, plain.steps, seeded)


def _round(
    command: Sequence[str], times: int, options: Options, place: Path, streams: dict[str, Any]
) -> Repeats:
    recordings = [
        run_training(
            command, place.with_name(f"{place.name}{number}"), options, **streams
        ).recording
        for number in range(times)
    ]
    reference = recordings[0]
    steps = max((len(rank.complete_steps) for rank in reference.ranks.values()), default=0)
    for other in recordings[1:]:
        first = first_difference(reference, other)
        if first is not None:
            return Repeats(times, first, compare_recordings(reference, other), steps)
    return Repeats(times, None, None, steps)
