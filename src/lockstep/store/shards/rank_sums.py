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
from lockstep.store.shards.put_together import Key
from lockstep.store.shards.rank_parts import elements_of

BETWEEN_RANKS = ("torch.distributed.", "_c10d_functional.")
_ADDS = ("all_reduce",)
_MADE = frozenset({Role.OUTPUT, Role.LOSS, Role.BUFFER})


@dataclass(frozen=True)
class Sums:
    """The sums over ranks of one step, by contents of the first rank.

    Parameters
    ----------
    of
        For what a collective made, what the first rank gave it.
    summands
        What goes into such a sum, at once or through other calls.
    """

    of: Mapping[int, int] = field(default_factory=dict)
    summands: frozenset[int] = frozenset()
    _taken: Mapping[int, Sequence[tuple[Call, Call | None]]] = field(default_factory=dict)

    @classmethod
    def within(cls, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]) -> Sums:
        """Find those of a step, given the calls of each rank and of the one rank by their keys."""
        of = {
            made.content.id: given.content.id
            for key, call in by_rank[0].items()
            if call.kind is CallKind.OPERATOR and all(key in one for one in by_rank)
            for given, made in _sum_over_ranks([one[key] for one in by_rank])
        }
        if not of:
            return cls()
        taken: dict[int, list[tuple[Call, Call | None]]] = defaultdict(list)
        for key, call in by_rank[0].items():
            for record in call.with_role(Role.INPUT):
                taken[record.content.id].append((call, whole.get(key)))
        return cls(of, _leading_to(set(of.values()), [*by_rank[0].values()]), taken)

    def is_divided(self, content: int, ranks: int) -> bool:
        """Whether a later call divides a content by the number of ranks, as it is or moved before."""
        waiting, known = [content], {content}
        while waiting:
            for call, partner in self._taken.get(waiting.pop(), ()):
                if division(call, partner) == ranks:
                    return True
                if operator_of(call.site.op).family is Family.MOVEMENT:
                    later = {one.content.id for one in call.with_role(Role.OUTPUT)} - known
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


def _sum_over_ranks(calls: Sequence[Call]) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """What the first rank gave and got of each sum that a call makes over all ranks."""
    given, made = (
        [one for one in calls[0].with_role(role) if one.site.phase is not Phase.BACKWARD]
        for role in (Role.INPUT, Role.OUTPUT)
    )
    if calls[0].site.op.startswith(BETWEEN_RANKS):
        if _adds_all(calls[0], len(calls)):
            yield from zip(given, made, strict=False)
        return
    for index, (record, result) in enumerate(zip(given, made, strict=False)):
        parts = [_at(call, Role.INPUT, index) for call in calls]
        sums = [_at(call, Role.OUTPUT, index) for call in calls]
        if _is_sum(parts, sums):
            yield record, result


def _adds_all(call: Call, ranks: int) -> bool:
    """Whether a call between ranks adds up what all of them give."""
    name, told = call.site.op.rpartition(".")[2].removesuffix("_"), [*call.arguments.values()]
    groups = [one.count(",") + 1 for one in map(str, told) if one.startswith("ranks ")]
    return name in _ADDS and "sum" in told and all(count == ranks for count in groups)


def _at(call: Call, role: Role, index: int) -> TensorRecord | None:
    found = call.with_role(role)
    return found[index] if index < len(found) else None


def _is_sum(parts: Sequence[TensorRecord | None], sums: Sequence[TensorRecord | None]) -> bool:
    """Whether every rank got the sum of what all gave, by their numbers; of equal parts it is not asked."""
    given = [one for one in parts if one is not None and one.content.loader is not None]
    made = [one for one in sums if one is not None and one.content.loader is not None]
    if len(given) < len(parts) or len(made) < len(sums):
        return False
    alike = len({one.digest for one in made}) == 1 and len({one.digest for one in given}) > 1
    if not alike or {one.shape for one in given} != {made[0].shape}:
        return False
    if not all(is_floating(one.dtype) for one in (*given, made[0])):
        return False
    arrays = [elements_of(one.content).astype(np.float64) for one in given]
    result = elements_of(made[0].content).astype(np.float64)
    reach = len(arrays) * unit_roundoff(made[0].dtype) * np.sum(np.abs(arrays), axis=0)
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(np.sum(arrays, axis=0) - result) <= reach))


def _leading_to(contents: set[int], calls: Sequence[Call]) -> frozenset[int]:
    """Contents that others are computed from, with these."""
    needed = set(contents)
    for call in reversed(calls):
        if any(one.content.id in needed for one in call.records if one.role in _MADE):
            needed |= {one.content.id for one in call.with_role(Role.INPUT)}
    return frozenset(needed)


__all__ = ["BETWEEN_RANKS", "Sums", "division"]
