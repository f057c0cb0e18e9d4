"""Delta debugging over the axes of a call's inputs (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing
input", IEEE TSE 2002), with ranges for subsets: what is kept of an axis is one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from lockstep.replay.answers import Axis, Cut

_FEW_AXES = 5
"""Axes of one extent up to which every choice among them is tried; of more all, up to so many, and all but each."""

_MOST_TOGETHER = 4
"""Of many axes of one extent, how many are tried together: an LSTM has its batch in input, hidden and cell state."""


@dataclass(slots=True)
class Search:
    """Keeps halving what axes of equal extent have, together, as long as the call still fails.

    extents: Of each axis of an input.
    fails: Whether the call still fails in the same way; None where it cannot be run so.
    in_time: Whether there is time for another attempt.

    attempts: Cuts that were tried.
    refused: Those among them with which the call cannot be run.
    """

    extents: Mapping[Axis, int]
    fails: Callable[[Cut], bool | None]
    in_time: Callable[[], bool]
    attempts: int = 0
    refused: int = 0
    _kept: dict[Axis, tuple[int, int]] = field(default_factory=dict)
    _resized: dict[int, int] = field(default_factory=dict)
    _apart: set[tuple[Axis, ...]] = field(default_factory=set)

    def smallest(self) -> Cut:
        """The smallest cut that was found; without ranges where none fails."""
        self._kept = {axis: (0, extent) for axis, extent in self.extents.items()}
        groups = list(self._groups())
        moved = True
        while moved and self.in_time():
            moved = False
            for axes in groups:
                moved |= self._halved(axes)
        return self._cut(self._kept, self._resized)

    def _groups(self) -> Iterator[tuple[Axis, ...]]:
        """Axes that may belong together, the longest first."""
        for extent in sorted({extent for extent in self.extents.values() if extent > 1})[::-1]:
            axes = [axis for axis, own in self.extents.items() if own == extent]
            yield from _choices(axes)

    def _halved(self, axes: tuple[Axis, ...]) -> bool:
        """Leave out half of some axes, then a quarter and so on, from either end."""
        starts = {self._kept[axis] for axis in axes}
        if len(starts) != 1 or axes in self._apart:
            return False  # some of them were cut without the others, or cannot be
        (start, stop) = starts.pop()
        less, moved = (stop - start) // 2, False
        ran = self.attempts - self.refused
        while less and self.in_time():
            for kept in ((start, stop - less), (start + less, stop)):
                if self._tried(axes, kept):
                    (start, stop), moved = kept, True
                    break
            else:
                less //= 2
                if not moved and self.attempts - self.refused == ran:
                    self._apart.add(axes)  # with half of them the call cannot be run
                    return False
            less = min(less, (stop - start) // 2)
        return moved

    def _tried(self, axes: Sequence[Axis], kept: tuple[int, int]) -> bool:
        smaller = {**self._kept, **dict.fromkeys(axes, kept)}
        named = self._resized | {self.extents[axes[0]]: kept[1] - kept[0]}
        for resized in (self._resized, named):
            self.attempts += 1
            found = self.fails(self._cut(smaller, resized))
            if found:
                self._kept, self._resized = smaller, resized
            if found is not None:
                return found
            self.refused += 1
        return False

    def _cut(self, kept: Mapping[Axis, tuple[int, int]], resized: Mapping[int, int]) -> Cut:
        ranges = ((*axis, *part) for axis, part in kept.items() if part != (0, self.extents[axis]))
        return Cut(tuple(ranges), tuple(resized.items()))


def _choices(axes: Sequence[Axis]) -> Iterator[tuple[Axis, ...]]:
    """Which of some axes of equal extent are cut together: all first."""
    if len(axes) <= _FEW_AXES:
        for count in range(len(axes), 0, -1):
            yield from combinations(axes, count)
        return
    yield tuple(axes)
    for count in range(1, _MOST_TOGETHER + 1):
        yield from combinations(axes, count)
    for left_out in axes:
        yield tuple(axis for axis in axes if axis != left_out)
