"""How the losses of two sound trainings grow apart, and the step at which they leave that growth.

Two sound runs on different devices differ by rounding. The difference grows from step to step, at first by a steady
factor, until it is as large as the loss varies by itself. A fault that begins late makes the difference jump. A jump
counts where

- it is at least `JUMP` times beyond the largest difference before it, with the growth of the first steps added; with a
  calibration, beyond the largest difference that the calibration shows by then, times the judge's margin;
- it stays there: in `STAYS` of the next `LOOKS_AT` values;
- the reference's own numbers do not jump: a spike of the loss enlarges every difference.

This finds no fault that is smaller than the noise by then. Windows do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.step_rows import Growth
from lockstep.judge.tolerances import CALIBRATION_MARGIN

JUMP = 16.0
"""Times beyond the largest difference before: the amplitude of a difference that stays the same varies less."""
LOOKS_AT, STAYS = 8, 6
"""Values from the jump on, and how many of them must lie beyond."""
LEAST_BEFORE = 8
"""Values before a jump that show how the difference grows."""
_FIRST = 16
"""Steps from which the factor of growth is taken."""
_MOST_FACTOR = 2.0
"""Factor a step that is believed: the value before a jump is as good as any for a faster growth."""
_SPIKE = 3.0
"""Times the reference's usual change a step from which on its numbers jump by themselves."""
_ROUNDINGS = 4.0


@dataclass(frozen=True, slots=True)
class Value:
    """One number of both runs at a step."""

    step: int
    reference: float
    candidate: float


def growth_of(
    name: str,
    values: Sequence[Value],
    *,
    dtype: str,
    rank: str = "",
    noise: Mapping[int, float] | None = None,
    restarts: Sequence[int] = (),
) -> Growth | None:
    """Return how a number of two runs grows apart; None where it is equal bit by bit, or too few steps have it.

    name: What it is called.
    values: In order of steps.
    dtype: What it was computed in.
    rank: The rank.
    noise: By step, the relative difference that a calibration shows.
    restarts: Steps at which the candidate was set to the reference's state: the difference begins anew.
    """
    apart = distances(values)
    if not any(apart):
        return None
    floor = _ROUNDINGS * unit_roundoff(dtype)
    segments = _segments(values, restarts)
    factor = _factor([max(one, floor) for one in apart[segments[0]]])
    first = next(one for one in apart if one)
    left = None
    for segment in segments:
        left = _leaves(values[segment], apart[segment], floor, factor, noise)
        if left is not None:
            break
    ended = max(one for one in apart if math.isfinite(one)) if any(map(math.isfinite, apart)) else 0
    told = Growth(name, first, ended, factor, by_calibration=noise is not None, rank=rank)
    if left is None:
        return told
    at, expected = left
    step, difference = at
    return Growth(
        name, first, ended, factor, step, difference, expected, noise is not None, rank
    )  # fmt: skip


def distances(values: Sequence[Value]) -> list[float]:
    """Return how far apart each value is, relative to the largest of the reference's last values; NaN is infinite."""
    found, sizes = [], list[float]()
    for one in values:
        sizes = [*sizes[-(_FIRST - 1) :], abs(one.reference)]
        size = max((each for each in sizes if math.isfinite(each)), default=0.0)
        apart = abs(one.candidate - one.reference)
        both = [math.isfinite(each) for each in (one.reference, one.candidate)]
        if not all(both):
            found.append(math.inf if any(both) else 0.0)
        else:
            found.append(apart / size if size else (math.inf if apart else 0.0))
    return found


def _segments(values: Sequence[Value], restarts: Sequence[int]) -> list[slice]:
    """Stretches of values of which each begins with one state."""
    places = [
        place for place, one in enumerate(values) if place and one.step in frozenset(restarts)
    ]
    return [
        slice(begin, end)
        for begin, end in zip([0, *places], [*places, len(values)], strict=True)
    ]  # fmt: skip


def _factor(apart: Sequence[float]) -> float:
    """Times a step by which the largest difference so far grows in the first steps."""
    finite = [one for one in apart[:_FIRST] if math.isfinite(one)]
    if len(finite) < LEAST_BEFORE:
        return 1.0
    begin = len(finite) // 4
    growth = max(finite) / max(finite[: begin + 1])
    factor: float = growth ** (1 / (len(finite) - begin - 1))
    return min(max(factor, 1.0), _MOST_FACTOR)


def _leaves(
    values: Sequence[Value],
    apart: Sequence[float],
    floor: float,
    factor: float,
    noise: Mapping[int, float] | None,
) -> tuple[tuple[int, float], float] | None:
    """The first value beyond what the ones before lead to, and the largest that was to be expected."""
    largest = floor
    by_noise = None if noise is None else _largest_noise(noise)
    for place, one in enumerate(values):
        if place >= LEAST_BEFORE and apart[place] > JUMP * largest:
            ahead = apart[place : place + LOOKS_AT]
            expected = [JUMP * largest * factor ** (after + 1) for after in range(len(ahead))]
            if by_noise is not None:
                expected = [max(floor, CALIBRATION_MARGIN * by_noise(one.step + LOOKS_AT))] * len(
                    ahead
                )
            beyond = sum(now > most for now, most in zip(ahead, expected, strict=True))
            if beyond >= STAYS and not _jumps_by_itself(values, place):
                return (one.step, apart[place]), expected[0]
        if math.isfinite(apart[place]):
            largest = max(largest, apart[place])
    return None


def _largest_noise(noise: Mapping[int, float]) -> Callable[[int], float]:
    """Gives the largest difference that a calibration shows up to a step."""
    steps = sorted(noise)

    def until(step: int) -> float:
        known = [noise[one] for one in steps if one <= step and math.isfinite(noise[one])]
        return max(known, default=0.0)

    return until


def _jumps_by_itself(values: Sequence[Value], place: int) -> bool:
    """Whether the reference's own numbers change more than usual around a place."""
    numbers = [one.reference for one in values[max(0, place - 2 * _FIRST) : place + LOOKS_AT]]
    changes = [abs(two - one) for one, two in pairwise(numbers)]
    here = min(place, 2 * _FIRST)
    before, around = changes[: max(here - 1, 1)], changes[max(here - 1, 0) :]
    if not all(map(math.isfinite, numbers)):
        return True
    usual = statistics.quantiles(before, n=10)[-1] if len(before) > 1 else max(before, default=0.0)
    return max(around, default=0.0) > _SPIKE * usual
