"""Calls that a dump tells in pieces, put in order of time: one that ended may get gradients long after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lockstep.recordings import ReadCall, ReadTensor

Key = tuple[int, ...]
"""When something was: place in the file, before (0) or at it (1), depth, number."""


@dataclass
class Draft:
    """A call that still takes tensors, with when each was seen."""

    key: Key
    call: ReadCall
    parent: Draft | None = None
    tensors: list[tuple[Key, ReadTensor]] = field(default_factory=list)


class Clock:
    """Numbers the moments and the calls of one rank."""

    def __init__(self) -> None:
        self.now, self._given = 0, 0

    def in_order(self, drafts: list[Draft]) -> Iterator[ReadCall]:
        """The calls of a step, in the order in which they began."""
        drafts = sorted(drafts, key=lambda one: one.key)
        keys = {key for one in drafts for key in (one.key, *(key for key, _ in one.tensors))}
        moments = {key: self.now + number for number, key in enumerate(sorted(keys), 1)}
        self.now += len(keys)
        numbers: dict[int, int] = {}
        for number, one in enumerate(drafts, self._given):
            numbers[id(one)] = number
            timed = sorted(
                ((moments[key], tensor) for key, tensor in one.tensors), key=lambda at: at[0]
            )
            yield replace(
                one.call,
                tensors=[replace(tensor, moment=moment) for moment, tensor in timed],
                parent=-1 if one.parent is None else numbers[id(one.parent)],
                moment=moments[one.key],
            )
        self._given += len(drafts)
