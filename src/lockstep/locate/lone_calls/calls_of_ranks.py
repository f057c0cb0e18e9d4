"""Name the calls that one rank alone makes before an origin, where ranks were put together.

Such a call has no place in what the ranks make together: one that scales the gradients of its rank is seen where they
are added up, as a difference of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from lockstep.core.dependence import Dependence
from lockstep.core.finding import Origin
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.locate.lone_calls.unaligned_calls import called_words
from lockstep.store.reader import Recording


def with_calls_of_one_rank(origins: Sequence[Origin], *recordings: Recording) -> list[Origin]:
    """Return the origins, the first with the calls that one rank alone makes in its step before it."""
    if not origins:
        return []
    first, *rest = origins
    clauses = [
        Clause(About.LONE_CALL, words) for one in recordings for words in _words_of(first, one)
    ]
    return [replace(first, reason=Reason(*first.reason.clauses, *clauses)), *rest]


def _words_of(origin: Origin, recording: Recording) -> Iterator[str]:
    many = recording.put_together_of
    if many is None:
        return
    from lockstep.unify.one_recording import calls_by_key

    ranks = [rank for rank in many.ranks.values() if origin.step in rank.steps]
    by_rank = [calls_by_key(rank.calls(origin.step)) for rank in ranks]
    for number, rank in enumerate(ranks):
        others = [found for place, found in enumerate(by_rank) if place != number]
        alone = [
            call
            for key, call in by_rank[number].items()
            if others
            and not any(key in found for found in others)
            and _may_act(call, origin, by_rank[number].values())
        ]
        dependence = Dependence(rank.steps, rank.calls)
        acting = [
            (one.site.op, one.library or one.source) for one in alone if not dependence.beside(one)
        ]
        if acting:
            yield f"{rank.name} alone calls {called_words(acting)}"


def _may_act(call: Call, origin: Origin, calls: Iterable[Call]) -> bool:
    """Whether a call of the script itself stands before an origin, as far as its rank makes that too."""
    from lockstep.unify.collective_sums import BETWEEN_RANKS

    if call.kind is not CallKind.OPERATOR or call.site.op.startswith(BETWEEN_RANKS):
        return False
    site = origin.module, origin.op, origin.call
    there = [one.sequence for one in calls if (one.site.module, one.site.op, one.site.call) == site]
    return not there or call.sequence < max(there)
