"""Choose the slabs to drop when there is no room.

A training reads each sample once an epoch, in any order. Throwing out the least recently used then throws out what is
needed next, and a cache that holds half of the samples hits far less than half of the time. What a training in progress
has in the cache therefore stays, and hits in every epoch; what does not fit is loaded each time (as in the cache of
Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021). Room is made of sessions that nobody
uses, the one first that was left longest ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from lockstep_cache.sessions import Session
from lockstep_cache.slabs import Slab


class Policy(Protocol):
    """Says which slabs go for others to come."""

    def victims(self, slabs: Iterable[Slab], sessions: Mapping[str, Session]) -> Iterator[Slab]:
        """The slabs of one tier that may go, the first first."""
        ...


class KeepWhatIsUsed:
    """Slabs of sessions that nobody uses, the longest unused session first; nothing else."""

    def victims(self, slabs: Iterable[Slab], sessions: Mapping[str, Session]) -> Iterator[Slab]:
        """As of `Policy`."""
        idle = [
            slab
            for slab in slabs
            if not slab.leases and not slab.writing and not sessions[slab.session].attached
        ]
        yield from sorted(idle, key=lambda one: (sessions[one.session].last_used, one.number))
