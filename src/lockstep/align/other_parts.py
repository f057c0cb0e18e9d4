"""Calls of one name that do not do the same part of the work, though all of it is the same.

Two runs may put sums and products together in another order: `(a - b) - (c - d)` and `(a - c) - (b - d)`. The n-th
subtraction of one is then not that of the other. What tells is that something else enters and leaves, and that the
next calls come to the same. Nor is a call that takes whole numbers the partner of one that takes
shares in their place, as a loss of two labels and one of a mixed one. Such calls are left without partner, and are
judged together, by what enters all of them and what leaves them: a wrong one shows there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

from lockstep.align.dataflow import Flow
from lockstep.align.likeness import is_near
from lockstep.core.dtypes import is_floating
from lockstep.core.finding import CallPair
from lockstep.core.operators import Family, Trait, family_of, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role

_REORDERED = frozenset({Family.ADDITIVE, Family.PRODUCT})
_MOST_CALLS = 16
"""Calls behind another that are followed: few lines are written in another way at once."""


def without_other_parts(
    pairs: Sequence[CallPair], reference: Flow, candidate: Flow
) -> list[CallPair]:
    """The pairs, with those apart that do other parts of the work."""
    kept: list[CallPair] = []
    for pair in pairs:
        left, right = pair.reference, pair.candidate
        if left is None or right is None or not _may_be_another(left, right):
            kept.append(pair)
        elif not _differ(left, right, Role.OUTPUT):
            kept.append(replace(pair, only_results=True))
        elif _takes_another_kind(left, right) or _come_to_the_same(
            left, right, reference, candidate
        ):
            kept += [
                replace(pair, candidate=None, method="none"),
                replace(pair, reference=None, method="none"),
            ]
        else:
            kept.append(pair)
    return kept


def _may_be_another(left: Call, right: Call) -> bool:
    """Whether two calls take other tensors, and are of a kind that may do another part of the work."""
    if left.kind is not CallKind.OPERATOR or left.site.phase is not Phase.FORWARD:
        return False
    if left.site.op != right.site.op or family_of(left.site.op) not in _REORDERED:
        return _takes_another_kind(left, right) and _differ(left, right, Role.OUTPUT)
    inputs, others = left.with_role(Role.INPUT), right.with_role(Role.INPUT)
    orders = [others]
    if Trait.COMMUTES in operator_of(left.site.op).traits:
        orders.append(others[::-1])
    return all(len(inputs) != len(one) or _far_apart(inputs, one) for one in orders)


def _takes_another_kind(left: Call, right: Call) -> bool:
    """Whether one call takes whole numbers where the other takes other ones, of another shape."""
    inputs = zip(left.with_role(Role.INPUT), right.with_role(Role.INPUT), strict=False)
    return any(
        is_floating(one.dtype) != is_floating(other.dtype) and one.shape != other.shape
        for one, other in inputs
    )


def _differ(left: Call, right: Call, role: Role) -> bool:
    return _far_apart(left.with_role(role), right.with_role(role))


def _far_apart(records: Sequence[TensorRecord], others: Sequence[TensorRecord]) -> bool:
    return any(
        one.digest != other.digest and not is_near(one, other)
        for one, other in zip(records, others, strict=False)
    )


def _come_to_the_same(left: Call, right: Call, reference: Flow, candidate: Flow) -> bool:
    """Whether something is made of both results, or of one the other, that is one tensor but for noise."""
    made = [*left.with_role(Role.OUTPUT)], [*right.with_role(Role.OUTPUT)]
    after = list(_behind(left, reference)), list(_behind(right, candidate))
    pairs = chain(
        product(made[0], after[1]), product(after[0], made[1]), product(after[0], after[1])
    )
    return any(
        _tells(one) and (one.digest == other.digest or is_near(one, other)) for one, other in pairs
    )


def _tells(record: TensorRecord) -> bool:
    """Whether a tensor is hardly equal to another one by chance, as truth values and zeros are."""
    numbers = record.statistics
    return (
        is_floating(record.dtype)
        and numbers is not None
        and (numbers.minimum != numbers.maximum or record.content.numel == 1)
    )


def _behind(call: Call, flow: Flow) -> Iterator[TensorRecord]:
    """What is made of a result, without it, by the next calls."""
    waiting, seen = [call], {call.id}
    while waiting and len(seen) <= _MOST_CALLS:
        for record in waiting.pop(0).with_role(Role.OUTPUT):
            for user in flow.consumers(record.content.id):
                if (
                    user.sequence > record.sequence
                    and user.id not in seen
                    and user.kind is CallKind.OPERATOR
                ):
                    seen.add(user.id)
                    waiting.append(user)
                    yield from user.with_role(Role.OUTPUT)
