"""Sums and products that two runs put together in another order: `(a - b) - (c - d)` and `(a - c) - (b - d)`.

The n-th subtraction of one run is then not that of the other, though all are called alike. What tells is that something
else enters and leaves, and that the calls of the same kind behind come to the same. Such calls are left without
partner, and are judged together, by what enters all of them and what leaves them: a wrong one shows there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockstep.align.dataflow import Flow
from lockstep.align.likeness import is_near
from lockstep.core.finding import CallPair
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role

_REORDERED = frozenset({Family.ADDITIVE, Family.PRODUCT})
_MOST_CALLS = 16
"""Calls of one kind behind another that are followed: longer sums are rarely written out."""


def without_reassociated(
    pairs: Sequence[CallPair], reference: Flow, candidate: Flow
) -> list[CallPair]:
    """The pairs, with those apart that two runs put together in another order."""
    kept: list[CallPair] = []
    for pair in pairs:
        left, right = pair.reference, pair.candidate
        if (
            left is not None
            and right is not None
            and _is_another(left, right)
            and _come_to_the_same(left, right, reference, candidate)
        ):
            kept += [
                replace(pair, candidate=None, method="none"),
                replace(pair, reference=None, method="none"),
            ]
        else:
            kept.append(pair)
    return kept


def _is_another(left: Call, right: Call) -> bool:
    """Whether two calls of an operator that may be reordered take and return other tensors."""
    if (
        left.kind is not CallKind.OPERATOR
        or left.site.phase is not Phase.FORWARD
        or left.site.op != right.site.op
        or family_of(left.site.op) not in _REORDERED
    ):
        return False
    inputs = left.with_role(Role.INPUT), right.with_role(Role.INPUT)
    if len(inputs[0]) != 2 or len(inputs[1]) != 2:
        return False
    return _differ(left, right, Role.OUTPUT) and _differ(left, right, Role.INPUT)


def _differ(left: Call, right: Call, role: Role) -> bool:
    records = zip(left.with_role(role), right.with_role(role), strict=False)
    return any(one.digest != other.digest and not is_near(one, other) for one, other in records)


def _come_to_the_same(left: Call, right: Call, reference: Flow, candidate: Flow) -> bool:
    after = list(_behind(left, reference)), list(_behind(right, candidate))
    return any(
        one.digest == other.digest or is_near(one, other) for one in after[0] for other in after[1]
    )


def _behind(call: Call, flow: Flow) -> Iterator[TensorRecord]:
    """What is made of a result by calls that only add, or only multiply, without the result itself."""
    family = family_of(call.site.op)
    waiting, seen = [call], {call.id}
    while waiting and len(seen) <= _MOST_CALLS:
        one = waiting.pop()
        for record in one.with_role(Role.OUTPUT):
            for user in flow.consumers(record.content.id):
                if (
                    user.sequence > one.sequence
                    and user.id not in seen
                    and user.kind is CallKind.OPERATOR
                    and family_of(user.site.op) is family
                ):
                    seen.add(user.id)
                    waiting.append(user)
                    yield from user.with_role(Role.OUTPUT)
