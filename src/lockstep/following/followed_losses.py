"""The losses that a followed training may have, those it had, and the step that is recorded for one that differs.

Small files in the recording, by which the training's processes and whoever follows them speak.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.core.replacement import replacing

_EXPECTED = ".expected-losses"
_HEARD = ".losses-"
_WANTED = ".wanted-step"
_END = "end"


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """A loss of the reference: the one of step `step`, and the distance that the candidate's may have, in its unit."""

    step: int
    value: float
    floor: float


@dataclass(frozen=True, slots=True)
class LossPair:
    """The losses of one backward pass, None where a run has none there.

    `floors` is how many floors they are apart: 0 where they are equal, more than 1 where they part, infinite where one
    is missing or not finite, NaN where the reference has no loss of this step at all.
    """

    step: int
    reference: float | None
    candidate: float | None
    floors: float


class LossComparison:
    """Holds the losses of one rank against those of the reference, as they come.

    Examples
    --------
    >>> comparison = LossComparison([ExpectedLoss(0, 1.0, 0.25)])
    >>> [pair.floors for pair in comparison.add(0, 1.5)]
    [2.0]
    """

    def __init__(self, expected: Iterable[ExpectedLoss]) -> None:
        self._expected: dict[int, list[ExpectedLoss]] = defaultdict(list)
        for loss in expected:
            self._expected[loss.step].append(loss)
        self._step, self._count = 0, 0

    def add(self, step: int, value: float) -> Iterator[LossPair]:
        """Compare the next loss; before it come those that the reference has and this training did not."""
        while self._step < step:
            for missing in self._expected.get(self._step, [])[self._count :]:
                yield LossPair(missing.step, missing.value, None, math.inf)
            self._step, self._count = self._step + 1, 0
        there = self._expected.get(step, [])
        if not there:
            yield LossPair(step, None, value, math.nan)
        elif self._count < len(there):
            one = there[self._count]
            yield LossPair(step, one.value, value, _floors(one, value))
        else:
            yield LossPair(step, None, value, math.inf)
        self._count += 1


def _floors(expected: ExpectedLoss, value: float) -> float:
    if value == expected.value or (math.isnan(value) and math.isnan(expected.value)):
        return 0.0
    apart = abs(value - expected.value)
    return apart / expected.floor if math.isfinite(apart) and expected.floor > 0 else math.inf


# --- files ---------------------------------------------------------------------------------------


def write_expected(recording: Path, losses: Mapping[str, Sequence[ExpectedLoss]]) -> None:
    """Write the losses that each rank may have, before the training begins. Raises OSError if it cannot be written."""
    with (recording / _EXPECTED).open("w", encoding="ascii") as file:
        for rank, those in losses.items():
            file.writelines(
                f"{rank} {one.step} {one.value.hex()} {one.floor.hex()}\n" for one in those
            )


def expected_in(recording: Path, rank: str) -> list[ExpectedLoss]:
    """Return the expected losses of one rank. Raises OSError if it cannot be read."""
    with (recording / _EXPECTED).open(encoding="ascii") as file:
        rows = (line.split() for line in file)
        return [
            ExpectedLoss(int(step), float.fromhex(value), float.fromhex(floor))
            for name, step, value, floor in rows
            if name == rank
        ]


def heard_path(recording: Path, rank: str, process: int) -> Path:
    """Return the file in which a process notes its losses, a line each: `heard_line`, `end_line`."""
    return recording / f"{_HEARD}{rank}-{process}"


def heard_line(step: int, value: float) -> str:
    """A loss of a step."""
    return f"{step} {value.hex()}\n"


def end_line(steps: int) -> str:
    """Return the line for the end of a process: its number of steps, all of whose losses come before it."""
    return f"{_END} {steps}\n"


@dataclass(frozen=True, slots=True)
class HeardLosses:
    """The losses of one process: `losses` as step and value; `ended` tells whether that is all of them."""

    losses: tuple[tuple[int, float], ...]
    ended: bool


def heard_in(recording: Path) -> dict[str, HeardLosses]:
    """Return the losses heard of each rank; of several processes of one rank, of the one with most losses."""
    found: dict[str, HeardLosses] = {}
    for path in sorted(recording.glob(f"{_HEARD}*")):
        rank = path.name.removeprefix(_HEARD).rpartition("-")[0]
        # What was being written as its process was killed ends without a line break.
        rows = [line.split() for line in path.read_text(encoding="ascii").split("\n")[:-1]]
        losses = tuple((int(step), float.fromhex(value)) for step, value in rows if step != _END)
        if rank not in found or len(losses) > len(found[rank].losses):
            found[rank] = HeardLosses(losses, any(row[0] == _END for row in rows))
    return found


def forget_losses(recording: Path) -> None:
    """Take all these files away."""
    for path in (*recording.glob(f"{_HEARD}*"), recording / _EXPECTED, recording / _WANTED):
        path.unlink(missing_ok=True)


def ask_to_record(recording: Path, step: int) -> None:
    """Ask each process of a training to record this step, if none was asked for yet."""
    if step_to_record(recording) is None:
        with replacing(recording / _WANTED) as aside:
            aside.write_text(f"{step}\n", encoding="ascii")


def step_to_record(recording: Path) -> int | None:
    """The step that was asked for, None where none was."""
    try:
        return int((recording / _WANTED).read_bytes())
    except (OSError, ValueError):
        return None
