"""Calls whose operands stand the other way round in one run: `a + b` and `b + a` are the same sum."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.core.finding import CallPair, Pair
from lockstep.core.operators import Trait, operator_of, writes_in_place
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role

Same = Callable[[TensorRecord, TensorRecord], bool]
"""Whether a tensor of the reference is the same one as a tensor of the candidate."""

_OF_OPERANDS = frozenset({Role.INPUT, Role.GRAD_INPUT, Role.PARAM_GRAD})


def commuted(calls: CallPair, pairs: tuple[Pair, ...], same: Same) -> tuple[Pair, ...]:
    """Return the pairs of two calls, operand by operand.

    Parameters
    ----------
    calls, pairs
        The two calls, and their records by position.
    same
        Tells which of the candidate's operands is which of the reference's.
    """
    left, right = calls.reference, calls.candidate
    if left is None or right is None or not (_commutes(left) and _commutes(right)):
        return pairs
    one, two = left.with_role(Role.INPUT), right.with_role(Role.INPUT)
    if len(one) != 2 or len(two) != 2 or same(one[0], two[0]) or same(one[1], two[1]):
        return pairs
    if not (same(one[0], two[1]) or same(one[1], two[0])):
        return pairs
    turned = {_key(record, 1 - record.index): record for record in right.records if _is_of(record)}
    found = [
        Pair(record, turned.pop(_key(record, record.index), None), calls.method)
        for record in left.records
        if _is_of(record)
    ]
    found += [Pair(None, record) for record in turned.values()]
    return (*(pair for pair in pairs if not _is_of(pair.present)), *found)


def _commutes(call: Call) -> bool:
    operator = operator_of(call.site.op)
    plain = call.kind is CallKind.OPERATOR and not call.arguments
    plain = plain and not writes_in_place(call.site.op)
    return plain and Trait.COMMUTES in operator.traits


def _is_of(record: TensorRecord) -> bool:
    return record.role in _OF_OPERANDS and record.index in (0, 1)


def _key(record: TensorRecord, index: int) -> tuple[object, ...]:
    return record.site.phase, record.role, record.occurrence, index
