"""Sums over ranks within a step: which tensors a collective adds up, and which of its results are divided afterwards.

A collective and the arithmetic around it are one thing. Every rank has the sum that a collective made; the whole of a
mean, added up over `n` ranks and not divided yet, is that sum divided by `n`. A call counts as a sum over ranks by its
name and operation, or by its numbers: an autograd function of the user's own hides the collective that it calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.operators import Family, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.unify.one_recording import Key
from lockstep.unify.whole_tensor import elements_of

BETWEEN_RANKS = ("torch.distributed.", "_c10d_functional.")
Held = tuple[str, int]
"""A content by the rank that holds it, and its number there."""
_MADE = frozenset({Role.OUTPUT, Role.LOSS, Role.BUFFER})


@dataclass(frozen=True)
class Sums:
    """The sums over ranks of one step.

    of: For what a collective made on a rank, what that rank gave.
    summands: What goes into such a sum, at once or through other calls.
    """

    of: Mapping[Held, Held] = field(default_factory=dict)
    summands: frozenset[Held] = frozenset()
    _taken: Mapping[Held, Sequence[tuple[Call, Call | None]]] = field(default_factory=dict)

    @classmethod
    def within(cls, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]) -> Sums:
        """Find those of a step, given the calls of each rank and of the one rank by their keys."""
        of = {
            held(made): held(given)
            for key, call in by_rank[0].items()
            if call.kind is CallKind.OPERATOR and all(key in one for one in by_rank)
            for given, made in _sums_over_ranks([one[key] for one in by_rank])
        }
        if not of:
            return cls()
        taken: dict[Held, list[tuple[Call, Call | None]]] = defaultdict(list)
        for calls in by_rank:
            for key, call in calls.items():
                for record in call.with_role(Role.INPUT):
                    taken[held(record)].append((call, whole.get(key)))
        every = [call for calls in by_rank for call in calls.values()]
        return cls(of, _leading_to(set(of.values()), every), taken)

    def is_divided(self, content: Held, ranks: int) -> bool:
        """Whether a later call divides a content by the number of ranks, as it is or moved before."""
        waiting, known = [content], {content}
        while waiting:
            for call, partner in self._taken.get(waiting.pop(), ()):
                if division(call, partner) == ranks:
                    return True
                if operator_of(call.site.op).family is Family.MOVEMENT:
                    later = {held(one) for one in call.with_role(Role.OUTPUT)} - known
                    known |= later
                    waiting.extend(later)
        return False


def division(call: Call, partner: Call | None) -> float | None:
    """Return by what a call divides its first tensor beside what its partner does; None where it does not by a number.

    Without a partner, one rank divides by nothing.
    """
    name = operator_of(call.site.op).name
    own, other = (_factor(one) for one in (call, partner))
    if name not in ("mul", "div") or own is None or (partner is not None and other is None):
        return None
    ratio = own / (1 if other is None else other)
    return ratio if name == "div" else 1 / ratio


def _factor(call: Call | None) -> float | None:
    value = None if call is None else call.arguments.get("args.1")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) or None


def held(record: TensorRecord) -> Held:
    """Return the content of a record by its rank."""
    return record.rank, record.content.id


def _sums_over_ranks(calls: Sequence[Call]) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """What each rank gave and got of the sums that a call makes over all ranks."""
    pairs = [
        [
            [one for one in call.with_role(role) if one.site.phase is not Phase.BACKWARD]
            for role in (Role.INPUT, Role.OUTPUT)
        ]
        for call in calls
    ]
    if calls[0].site.op.startswith(BETWEEN_RANKS):
        for call, (given, made) in zip(calls, pairs, strict=True):
            if _adds_all(call, len(calls)):
                yield from zip(given, made, strict=False)
        return
    for index in range(min(len(one) for pair in pairs for one in pair)):
        parts, sums = ([pair[side][index] for pair in pairs] for side in (0, 1))
        if _is_sum(parts, sums):
            yield from zip(parts, sums, strict=True)


def _adds_all(call: Call, ranks: int) -> bool:
    """Whether a call between ranks gives this rank the sum of what all of them give."""
    name, told = call.site.op.rpartition(".")[2].removesuffix("_"), [*call.arguments.values()]
    groups = [one.count(",") + 1 for one in map(str, told) if one.startswith("ranks ")]
    if "sum" not in told or any(count != ranks for count in groups):
        return False
    if name == "reduce":
        target = call.arguments.get("args.1", call.arguments.get("kwargs.dst"))
        return f"rank{target}" == call.rank
    return name == "all_reduce"


def _is_sum(parts: Sequence[TensorRecord], sums: Sequence[TensorRecord]) -> bool:
    """Whether every rank got the sum of what all gave, by their numbers; of equal parts it is not asked."""
    if any(one.content.loader is None for one in (*parts, *sums)):
        return False
    alike = len({one.digest for one in sums}) == 1 and len({one.digest for one in parts}) > 1
    if not alike or {one.shape for one in parts} != {sums[0].shape}:
        return False
    if not all(is_floating(one.dtype) for one in (*parts, sums[0])):
        return False
    arrays = [elements_of(one.content).astype(np.float64) for one in parts]
    result = elements_of(sums[0].content).astype(np.float64)
    reach = len(arrays) * unit_roundoff(sums[0].dtype) * np.sum(np.abs(arrays), axis=0)
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(np.sum(arrays, axis=0) - result) <= reach))


def _leading_to(contents: set[Held], calls: Sequence[Call]) -> frozenset[Held]:
    """Contents that others are computed from, with these; calls of each rank in order of time."""
    needed = set(contents)
    for call in reversed(calls):
        if any(held(one) in needed for one in call.records if one.role in _MADE):
            needed |= {held(one) for one in call.with_role(Role.INPUT)}
    return frozenset(needed)


__all__ = ["BETWEEN_RANKS", "Held", "Sums", "division", "held"]
