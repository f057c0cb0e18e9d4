"""Room that a writer has ahead of its samples: it writes them there without asking for each, and says so afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep_cache.sessions import Session
from lockstep_cache.slabs import ALIGNMENT, Slab, Tier


@dataclass(slots=True)
class Reserve:
    """A part of a slab.

    slab: Where it lies.
    start, end: Bytes of the slab.
    reach: Up to where samples were written, as far as their writer has told.
    """

    slab: Slab
    start: int
    end: int
    reach: int

    def holds(self, offset: int, size: int) -> bool:
        """Whether a sample may have been written there."""
        is_inside = self.start <= offset and 0 < size <= self.end - offset
        return is_inside and offset % ALIGNMENT == 0 and not self.slab.retired


class Reserves:
    """Those of all writers: one for each session that a writer uses.

    is_free: Is told of a slab that nobody writes to any more.
    """

    def __init__(self, is_free: Callable[[Slab], None]) -> None:
        self._is_free = is_free
        self._held: dict[tuple[int, str], Reserve] = {}
        self._lost: dict[int, list[Reserve]] = {}

    def give(
        self, connection: int, session: Session, size: int, tiers: Iterable[Tier]
    ) -> list[int]:
        """Reserve up to so many bytes of a slab that is being filled, instead of what the writer had before.

        Returns
        -------
        list of int
            Slab, offset and bytes; none where samples of the session come from two writers at once, which would write
            them twice, or where the next slab has no room: others are to get what is left.
        """
        self.take_back(connection, session.name)
        if session.is_doubled or not size:
            return []
        for tier in tiers:
            slab = session.open_slabs.get(tier.name)
            if slab is None or tier.bound_bytes - tier.used_bytes < slab.size:
                continue
            size = min(size, slab.size - slab.used, slab.size // 2) // ALIGNMENT * ALIGNMENT
            offset = slab.take(size) if size else None
            if offset is not None:
                slab.writing += 1
                self._held[connection, session.name] = Reserve(slab, offset, offset + size, offset)
                return [slab.number, offset, size]
        return []

    def written(self, connection: int, session: str, offset: int, size: int) -> Slab | None:
        """The slab in which a writer says that it has written there; None where it may not have."""
        reserve = self._held.get((connection, session))
        if reserve is None or not reserve.holds(offset, size):
            return None
        reserve.reach = max(reserve.reach, offset + -(-size // ALIGNMENT) * ALIGNMENT)
        return reserve.slab

    def take_back(self, connection: int, session: str) -> None:
        """Take back what a writer has not written to, as it says itself."""
        reserve = self._held.pop((connection, session), None)
        if reserve is not None:
            reserve.slab.give_back(reserve.reach, reserve.end)
            self._end(reserve)

    def left(self, connection: int) -> None:
        """A connection has ended: what it had is nobody's until its process has, too, which may be writing still."""
        for one in [one for one in self._held if one[0] == connection]:
            reserve = self._held.pop(one)
            self._lost.setdefault(connection, []).append(reserve)
            self._end(reserve)

    def ended(self, connection: int) -> None:
        """The process of a connection has ended: what it left can be written to."""
        for reserve in self._lost.pop(connection, []):
            reserve.slab.give_back(reserve.reach, reserve.end)

    def _end(self, reserve: Reserve) -> None:
        reserve.slab.writing -= 1
        if reserve.slab.retired:
            self._is_free(reserve.slab)
