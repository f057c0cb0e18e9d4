"""Pairs of calls that alignment takes back or turns round: other parts of the work or constants, operands exchanged.

Two runs may put sums and products together in another order: `(a - b) - (c - d)` and `(a - c) - (b - d)`. The n-th
subtraction of one is then not that of the other. What tells is that something else enters and leaves, and that the
next calls come to the same. Nor is a call that takes whole numbers the partner of one that takes
shares in their place, as a loss of two labels and one of a mixed one. Such calls are left without partner, and are
judged together, by what enters all of them and what leaves them: a wrong one shows there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, product

from lockstep.align.alignment import SAME_PLACE
from lockstep.align.dataflow import Flow
from lockstep.align.likeness import is_near
from lockstep.core.dtypes import is_floating
from lockstep.core.finding import CallPair, Pair
from lockstep.core.operators import Family, Trait, family_of, operator_of, writes_in_place
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role

_REORDERED = frozenset({Family.ADDITIVE, Family.PRODUCT})
_MOST_CALLS = 16
"""Calls behind another that are followed: few lines are written in another way at once."""


def without_other_parts(
    pairs: Sequence[CallPair], reference: Flow, candidate: Flow
) -> list[CallPair]:
    """The pairs, with those apart that do other parts of the work."""
    held = _Held(reference), _Held(candidate)
    kept: list[CallPair] = []
    for pair in pairs:
        left, right = pair.reference, pair.candidate
        if left is None or right is None or not _may_be_another(left, right, held):
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


class _Held:
    """The tensors that one run's operators take and return, to ask whether another run's tensor is among them."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @cached_property
    def _by_shape(self) -> dict[tuple[int, ...], list[TensorRecord]]:
        found: dict[int, TensorRecord] = {}
        for call in self._flow.calls.values():
            if call.kind is CallKind.OPERATOR:
                for record in call.with_role(Role.INPUT, Role.OUTPUT):
                    found.setdefault(record.content.id, record)
        shapes: dict[tuple[int, ...], list[TensorRecord]] = defaultdict(list)
        for record in found.values():
            shapes[record.shape].append(record)
        return shapes

    def has(self, one: TensorRecord) -> bool:
        """Whether a tensor is here that is this one but for noise."""
        size = _norm(one)
        return any(
            one.digest == other.digest
            or (abs(_norm(other) - size) <= _SIZES * size and is_near(one, other))
            for other in self._by_shape.get(one.shape, ())
        )


_SIZES = 0.05
"""How far apart norms may be, relative to each other, of tensors that are then held against each other."""


def _norm(record: TensorRecord) -> float:
    return math.nan if record.statistics is None else record.statistics.norm


def _may_be_another(left: Call, right: Call, held: tuple[_Held, _Held]) -> bool:
    """Whether two calls take other tensors, and are of a kind that may do another part of the work.

    What is not the same in both runs only because they parted before is no other tensor.
    """
    if left.kind is not CallKind.OPERATOR or left.site.phase is not Phase.FORWARD:
        return False
    if left.site.op != right.site.op or family_of(left.site.op) not in _REORDERED:
        return _takes_another_kind(left, right) and _differ(left, right, Role.OUTPUT)
    inputs, others = left.with_role(Role.INPUT), right.with_role(Role.INPUT)
    if len(inputs) != len(others):
        return True
    if Trait.COMMUTES in operator_of(left.site.op).traits and not _far_apart(inputs, others[::-1]):
        return False
    return any(
        held[1].has(one) and held[0].has(other)
        for one, other in zip(inputs, others, strict=True)
        if _far_apart([one], [other])
    )


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


# Constants that the two runs make by different operators: a mask made of `full` in one run, of `ones` in the other.
#
# Two different operators at one place are aligned as a guess. Where they take no tensors and do not make the same, the
# guess tells nothing: what they make is one run's own, and so is what is made of it alone. It is judged where it meets
# other tensors, as what calls without partner make is.

DRAWN = frozenset({Family.RANDOM, Family.UNINITIALISED, Family.DROPOUT})
"""Families of operators that take no tensor and make no constant."""


def without_other_constants(
    pairs: Sequence[CallPair], reference: Flow, candidate: Flow
) -> list[CallPair]:
    """Return the pairs, with both calls of a pair by itself where each makes a constant of its own."""
    parted = _parted(pairs, reference, candidate)
    return [one for pair in pairs for one in (_alone(pair) if id(pair) in parted else (pair,))]


def _parted(pairs: Sequence[CallPair], reference: Flow, candidate: Flow) -> set[int]:
    parted: set[int] = set()
    made: tuple[set[int], set[int]] = (set(), set())
    for pair in pairs:
        left, right = pair.reference, pair.candidate
        if left is None or right is None or left.kind is not CallKind.OPERATOR:
            continue
        guessed = pair.method == SAME_PLACE and _creates(left) and _creates(right)
        follows = _is_made_of(left, reference, made[0]) and _is_made_of(right, candidate, made[1])
        if (guessed or follows) and _makes_otherwise(left, right):
            parted.add(id(pair))
            made[0].add(left.id)
            made[1].add(right.id)
    return parted


def _creates(call: Call) -> bool:
    return not call.with_role(Role.INPUT) and family_of(call.site.op) not in DRAWN


def _is_made_of(call: Call, flow: Flow, constants: set[int]) -> bool:
    """Whether all that goes into a call was made by some of these calls."""
    makers = [flow.producer(one.content.id, one.sequence) for one in call.with_role(Role.INPUT)]
    return bool(makers) and all(maker is not None and maker.id in constants for maker in makers)


def _makes_otherwise(left: Call, right: Call) -> bool:
    """Whether contents are known to differ."""
    digests = [[one.digest for one in call.with_role(Role.OUTPUT)] for call in (left, right)]
    return digests[0] != digests[1] and not any(None in one for one in digests)


def _alone(pair: CallPair) -> Iterator[CallPair]:
    yield CallPair(pair.reference, None, "none")
    yield CallPair(None, pair.candidate, "none")


Same = Callable[[TensorRecord, TensorRecord], bool]
"""Whether a tensor of the reference is the same one as a tensor of the candidate."""

_OF_OPERANDS = frozenset({Role.INPUT, Role.GRAD_INPUT, Role.PARAM_GRAD})


def commuted(calls: CallPair, pairs: tuple[Pair, ...], same: Same) -> tuple[Pair, ...]:
    """Return the pairs of two calls, operand by operand.

    calls, pairs: The two calls, and their records by position.
    same: Tells which of the candidate's operands is which of the reference's.
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
