"""Pair calls whose operands are exchanged in one run: `a + b` and `b + a` are the same sum."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.align.alignment import SAME_PLACE
from lockstep.core.dtypes import is_floating
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
    if left is None or right is None:
        return pairs
    if calls.method == SAME_PLACE and not calls.only_results:
        return _of_other_operators(calls, pairs, same)
    if not (_commutes(left) and _commutes(right)):
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


def _of_other_operators(calls: CallPair, pairs: tuple[Pair, ...], same: Same) -> tuple[Pair, ...]:
    """The pairs of calls of two operators, which may take the same tensors by other names.

    Where the tensors of some pair cannot be one another, as indices and numbers cannot, those that are the same face
    each other, and what is left stands alone.
    """
    operands = [pair for pair in pairs if pair.present.role is Role.INPUT]
    left = [pair.reference for pair in operands if pair.reference is not None]
    right = [pair.candidate for pair in operands if pair.candidate is not None]
    if all(_may_face(pair.reference, pair.candidate) for pair in operands):
        return pairs
    facing: dict[int, int] = {}
    for one in left:
        found = [two.index for two in right if two.index not in facing.values() and same(one, two)]
        facing.update({one.index: found[0]} if found else {})
    if not facing:
        return pairs
    return _paired_by(calls, pairs, facing)


def _paired_by(
    calls: CallPair, pairs: tuple[Pair, ...], facing: dict[int, int]
) -> tuple[Pair, ...]:
    """The pairs with the candidate's operand at the position that faces each of the reference's."""
    others = [pair for pair in pairs if pair.present.role not in _OF_OPERANDS]
    left = [p.reference for p in pairs if p.reference and p.reference.role in _OF_OPERANDS]
    right = [p.candidate for p in pairs if p.candidate and p.candidate.role in _OF_OPERANDS]
    waiting = {_key(record, record.index): record for record in right}
    found = [
        Pair(record, waiting.pop(_key(record, facing.get(record.index, -1)), None), calls.method)
        for record in left
    ]
    return (*others, *found, *(Pair(None, record) for record in waiting.values()))


def _may_face(left: TensorRecord | None, right: TensorRecord | None) -> bool:
    if left is None or right is None:
        return False
    return left.shape == right.shape and is_floating(left.dtype) == is_floating(right.dtype)


def _commutes(call: Call) -> bool:
    operator = operator_of(call.site.op)
    plain = call.kind is CallKind.OPERATOR and not call.arguments
    plain = plain and not writes_in_place(call.site.op)
    return plain and Trait.COMMUTES in operator.traits


def _is_of(record: TensorRecord) -> bool:
    return record.role in _OF_OPERANDS and record.index in (0, 1)


def _key(record: TensorRecord, index: int) -> tuple[object, ...]:
    return record.site.phase, record.role, record.occurrence, index
