"""Recordings whose names do not tell the order of calls, or which call was made inside which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lockstep.align.alignment import align_calls
from lockstep.align.names import NameMap
from lockstep.core.manifest import NESTING, ORDER
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.store.reader import RankRecording

Calls = Sequence[Call]


def tells_order(rank: RankRecording) -> bool:
    """Return whether the order of a rank's calls is known."""
    return all(gap.what != ORDER for gap in rank.manifest.not_seen)


def tells_nesting(rank: RankRecording) -> bool:
    """Whether it is known which call was made inside of which."""
    return all(gap.what != NESTING for gap in rank.manifest.not_seen)


def nested_by_path(reference: Calls, candidate: Calls, names: NameMap) -> tuple[Calls, Calls]:
    """Calls of both sides, put into each other by the paths of the modules that both call."""
    sides = (reference, str), (candidate, names.module)
    both = _called(*sides[0]) & _called(*sides[1])
    left, right = ([*_nested(calls, both, path_of)] for calls, path_of in sides)
    return left, right


def _called(calls: Calls, path_of: Callable[[str], str]) -> set[str]:
    return {path_of(call.site.module) for call in calls if call.kind is CallKind.MODULE}


def _nested(
    calls: Calls, holders: Collection[str], path_of: Callable[[str], str]
) -> Iterable[Call]:
    """Each call inside of the last call of the innermost of these modules around it."""
    last: dict[str, int] = {}
    for call in calls:
        own = path_of(call.site.module)
        path = own.rpartition(".")[0] if call.kind is CallKind.MODULE else own
        while path and path not in last:
            path = path.rpartition(".")[0]
        yield replace(call, parent=last[path] if path else -1)
        if call.kind is CallKind.MODULE and own in holders:
            last[own] = call.id


def in_one_order(
    reference: Calls, candidate: Calls, names: NameMap, told: tuple[bool, bool]
) -> tuple[Calls, Calls]:
    """Calls of both sides, those of one that tells no order at the moments of their partners."""
    if told[0] == told[1]:
        return reference, candidate
    pairs = [
        (pair.reference, pair.candidate)
        for pair in align_calls(reference, candidate, names)
        if pair.reference is not None and pair.candidate is not None
    ]
    if told[0]:
        return reference, _moved({right.id: left for left, right in pairs}, candidate, reference)
    return _moved({left.id: right for left, right in pairs}, reference, candidate), candidate


def _moved(partners: Mapping[int, Call], calls: Calls, told: Calls) -> Calls:
    """Calls at the moments of their partners; those without one come last."""
    end = max(map(_last, told), default=0) + 1
    moved = []
    for call in calls:
        partner = partners.get(call.id)
        moved.append(_behind(call, end) if partner is None else _beside(call, partner))
    return sorted(moved, key=lambda call: call.sequence)


def _last(call: Call) -> int:
    return max((record.sequence for record in call.records), default=call.sequence)


def _behind(call: Call, end: int) -> Call:
    records = tuple(replace(one, sequence=end + one.sequence) for one in call.records)
    return replace(call, sequence=end + call.sequence, records=records)


def _beside(call: Call, partner: Call) -> Call:
    """A call when its partner was, each of its records when the partner's of its role was, or behind all."""
    seen = {(one.role, one.index): one.sequence for one in partner.records}
    last = _last(partner)
    records = tuple(
        replace(one, sequence=seen.get((one.role, one.index), last)) for one in call.records
    )
    return replace(call, sequence=partner.sequence, records=records)
