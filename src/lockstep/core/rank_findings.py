"""Findings of many ranks, of which those that are equal by the digests of their files are read only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar, overload

F = TypeVar("F")
"""A finding: `lockstep.core.finding` knows these sequences, and they know nothing of it."""


@dataclass(frozen=True, slots=True)
class EqualRank(Generic[F]):
    """The findings of a rank whose tensors are all equal bit by bit.

    Parameters
    ----------
    name
        The rank's.
    count
        How many there are.
    read
        Opens the rank in both recordings and returns them; nothing of it is kept.
    """

    name: str
    count: int
    read: Callable[[], Sequence[F]]


class RankFindings(Sequence[F]):
    """The findings of all ranks in order.

    parts: Findings that are at hand, and equal ranks, which are opened one after the other while all are gone through.
    """

    def __init__(self, parts: Iterable[Sequence[F] | EqualRank[F]]) -> None:
        self._parts = tuple(parts)

    @property
    def at_hand(self) -> Iterator[F]:
        """The findings of the ranks that were opened."""
        return chain.from_iterable(one for one in self._parts if not isinstance(one, EqualRank))

    @property
    def equal_ranks(self) -> Iterator[EqualRank[F]]:
        """The ranks that were not opened."""
        return (one for one in self._parts if isinstance(one, EqualRank))

    def __len__(self) -> int:
        return sum(one.count if isinstance(one, EqualRank) else len(one) for one in self._parts)

    def __iter__(self) -> Iterator[F]:
        for one in self._parts:
            yield from one.read() if isinstance(one, EqualRank) else one

    @overload
    def __getitem__(self, place: int, /) -> F: ...

    @overload
    def __getitem__(self, place: slice, /) -> Sequence[F]: ...

    def __getitem__(self, place: int | slice, /) -> F | Sequence[F]:
        """The findings at some places; no rank after the last of them is opened."""
        wanted = range(len(self))[place]
        if isinstance(wanted, int):
            return next(islice(self, wanted, None))
        last = max(wanted, default=-1)
        found = dict(enumerate(islice(self, last + 1)))
        return [found[number] for number in wanted]
