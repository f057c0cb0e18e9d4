"""Finding which call of one run corresponds to which call of the other.

Modules are aligned by path and order, where need be by their name in the other run
(`lockstep.align.renames`); operators inside an aligned module call by name, shape and order; what
is left by what it returns (`lockstep.align.likeness`). So one call more on one side shifts
nothing else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lockstep.align.likeness import align_by_content, calls_in_parts, is_near, takes_alike
from lockstep.align.names import SAME_NAMES, NameMap
from lockstep.align.paired_records import layout_of
from lockstep.align.sequences import Match, align_sequences, pair_in_order
from lockstep.core.dtypes import is_complex
from lockstep.core.finding import CallPair, Pair
from lockstep.core.operators import (
    Family,
    canonical_name,
    family_of,
    operator_of,
    parameters_by_call,
)
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role

Token = Callable[[Call], Hashable]

_TELLING = 16
"""Elements from which on equal digests of two runs mean the same place rather than chance."""


def align_calls(
    reference: Sequence[Call], candidate: Sequence[Call], names: NameMap = SAME_NAMES
) -> list[CallPair]:
    """Align the calls of one step of one rank.

    `names` tells what the candidate's modules, parameters and operators are called in the reference.

    Every call appears in exactly one pair, alone where it has no partner. Module calls come first,
    because an operator is looked for only inside the partner of the module call around it. The
    result is in order of time: by the reference's sequence, a candidate call without partner right
    after the candidate's call before it.
    """
    partners: dict[int, tuple[int, str]] = {}
    known_as = [names.call(call) for call in candidate] if names else candidate
    groups = _grouped(reference, known_as, _ALL_BUT_OPERATORS, {})
    taken: set[int] = set()
    around = _around(partners, taken)
    for left, right in groups:
        if left and right and left[0].kind is CallKind.DATA:
            partners.update(_aligned_data(left, right, reference, candidate))
        else:
            more = _aligned_group(left, right, around)
            partners.update(more)
            taken.update(number for number, _ in more.values())
    _leave_parts_alone(reference, known_as, partners, CallKind.MODULE)
    same_parent = {right: left for left, (right, _) in partners.items()}
    gradients = parameters_by_call(reference), parameters_by_call(known_as)
    for left, right in _of_one_gradient(reference, known_as, gradients):
        partners.update(_aligned_group(left, right))
    taken = {number for number, _ in partners.values()}
    rest = [call for call in reference if not (call.id in gradients[0] and call.id in partners)]
    others = [call for call in known_as if not (call.id in gradients[1] and call.id in taken)]
    for left, right in _grouped(rest, others, {CallKind.OPERATOR}, same_parent):
        partners.update(_aligned_group(left, right))
    _leave_parts_alone(reference, known_as, partners, CallKind.OPERATOR)
    calls = {call.id: call for call in reference}, {call.id: call for call in candidate}
    pairs = {
        left: (
            right,
            method,
            method == SAME_PLACE and _only_returns(calls[0][left], calls[1][right]),
        )
        for left, (right, method) in partners.items()
        if not _selects_others(calls[0][left], calls[1][right])
        and not _is_of_other_numbers(calls[0][left], calls[1][right])
    }
    found = {left: right for left, (right, _, _) in pairs.items()}
    for one in align_by_content(reference, candidate, found):
        pairs[one.reference.id] = (one.candidate.id, one.method, one.only_results)
    return _in_time(reference, candidate, pairs, names)


def _leave_parts_alone(
    reference: Sequence[Call],
    candidate: Sequence[Call],
    partners: dict[int, tuple[int, str]],
    kind: CallKind,
) -> None:
    found = {left: right for left, (right, _) in partners.items()}
    for number in calls_in_parts(reference, candidate, found, kind):
        del partners[number]


SAME_PLACE = "same place"


def _only_returns(left: Call, right: Call) -> bool:
    """Whether two calls in one place may have nothing in common but what they return.

    A compiled function may hold all that comes before the other run's call in its place. So may an operator that takes
    something else: the last of the parts that another one is written out in.
    """
    if is_compiled(left) != is_compiled(right):
        return True
    if canonical_name(left.site.op) == canonical_name(right.site.op):
        return False
    return not takes_alike(left, right)


def _selects_others(left: Call, right: Call) -> bool:
    """Whether two calls only move or choose elements, and return others: more of them, or in another order.

    Then they are no partners by their name: one run may come to the same by another way, which is seen where the ways
    meet. What they were given is in the data flow, so that a wrong choice is seen there too.
    """
    if left.kind is not CallKind.OPERATOR or family_of(left.site.op) not in _MOVING:
        return False
    if not (left.with_role(Role.INPUT) and right.with_role(Role.INPUT)):
        return False
    return any(
        one.shape != other.shape and layout_of(Pair(one, other)) is None
        for one, other in zip(
            left.with_role(Role.OUTPUT), right.with_role(Role.OUTPUT), strict=False
        )
    )


_MOVING = frozenset({Family.MOVEMENT, Family.GATHER})


def _is_of_other_numbers(left: Call, right: Call) -> bool:
    """Whether one operator returns complex numbers and the other real ones: a rotation as one product, and by parts."""
    return left.kind is CallKind.OPERATOR and any(
        is_complex(one.dtype) != is_complex(other.dtype)
        for one, other in zip(
            left.with_role(Role.OUTPUT), right.with_role(Role.OUTPUT), strict=False
        )
    )


def is_compiled(call: Call) -> bool:
    """Return whether a call is one of a compiled function, as `lockstep.capture.handlers.reach` names them."""
    return call.site.op.startswith("torch.compile(")


_ALL_BUT_OPERATORS = frozenset(CallKind) - {CallKind.OPERATOR}


_OUTSIDE, _INSIDE_ALONE = -1, -2
"""Around a call is no module call, or one that the other run lacks."""


def _grouped(
    reference: Sequence[Call],
    candidate: Sequence[Call],
    kinds: Iterable[CallKind],
    same_parent: dict[int, int],
) -> list[tuple[list[Call], list[Call]]]:
    """Calls that may correspond at all: of one kind, phase, path and aligned parent."""
    wanted = frozenset(kinds)
    aligned_parents = set(same_parent.values())
    groups: dict[Hashable, tuple[list[Call], list[Call]]] = {}
    for side, calls in enumerate((reference, candidate)):
        for call in calls:
            if call.kind not in wanted:
                continue
            inside = _OUTSIDE if call.parent < 0 else _INSIDE_ALONE
            if side == 1:
                parent = same_parent.get(call.parent, inside)
            else:
                parent = call.parent if call.parent in aligned_parents else inside
            where = call.site.module
            key = (call.kind, call.site.phase, call.recomputed, parent, where)
            groups.setdefault(key, ([], []))[side].append(call)
    return list(groups.values())


def _of_one_gradient(
    reference: Sequence[Call],
    candidate: Sequence[Call],
    gradients: tuple[Mapping[int, str], Mapping[int, str]],
) -> Iterator[tuple[list[Call], list[Call]]]:
    """Calls that take the gradient of one parameter alone: a loop may go over the parameters in any order."""
    groups: dict[Hashable, tuple[list[Call], list[Call]]] = {}
    for side, calls in enumerate((reference, candidate)):
        for call in calls:
            if call.id in gradients[side]:
                key = (call.site.phase, gradients[side][call.id])
                groups.setdefault(key, ([], []))[side].append(call)
    yield from groups.values()


def _aligned_group(
    left: list[Call], right: list[Call], around: tuple[Token, Token] | None = None
) -> dict[int, tuple[int, str]]:
    """Partner and method of every reference call of one group that has one.

    `around` gives for a call of either side the aligned call around it.
    """
    if not left or not right:
        return {}
    if left[0].kind in _WITHOUT_ORDER:
        return _by_tokens(left, right, _tokens(left[0].kind))
    if [_output_shapes_of(call) for call in left] == [_output_shapes_of(call) for call in right]:
        # Nothing to decide: contents that happen to be equal must not pull two calls together.
        pairs = zip(left, right, strict=True)
        return {before.id: (after.id, "operator, shape and order") for before, after in pairs}
    partners: dict[int, tuple[int, str]] = {}
    gaps = [(left, right)]
    tokens = [(token, token, method) for token, method in _tokens(left[0].kind)]
    if around is not None and left[0].kind is CallKind.MODULE:
        tokens.insert(1, (*around, "module path, call around it and order"))
    for of_left, of_right, method in tokens:
        remaining = []
        for before, after in gaps:
            matches = align_sequences(list(map(of_left, before)), list(map(of_right, after)))
            partners.update({before[i].id: (after[j].id, method) for i, j in matches})
            remaining.extend(_gaps_between(before, after, matches))
        gaps = remaining
    if left[0].kind is CallKind.OPERATOR:
        for before, after in gaps:
            if len(before) == len(after) == 1 and _output_shapes(before[0]) == _output_shapes(
                after[0]
            ):
                partners[before[0].id] = (after[0].id, SAME_PLACE)
    return partners


def _around(partners: Mapping[int, tuple[int, str]], taken: Collection[int]) -> tuple[Token, Token]:
    """Tokens of the aligned call around a call, for either side; calls inside of none are unlike each other.

    `taken` are the numbers of the candidate's calls that have a partner.
    """

    def of_reference(call: Call) -> Hashable:
        around = partners.get(call.parent)
        return _Unlike(call.sequence) if around is None else (around[0], _output_shapes(call))

    def of_candidate(call: Call) -> Hashable:
        inside = call.parent in taken
        return (call.parent, _output_shapes(call)) if inside else _Unlike(call.sequence)

    return of_reference, of_candidate


def _aligned_data(
    left: list[Call], right: list[Call], reference: Sequence[Call], candidate: Sequence[Call]
) -> dict[int, tuple[int, str]]:
    """Partners of what enters a step; what the other run has too, but makes within it, has no other partner.

    A loader that puts its batch together while a step is open lets rows of it enter, not the batch.
    """
    tokens = _tokens(CallKind.DATA)
    alike = _by_tokens(left, right, tokens[:_SURE])
    taken = {number for number, _ in alike.values()}
    left = [call for call in left if call.id not in alike]
    right = [call for call in right if call.id not in taken]
    if left and right:
        left, right = _not_made(left, candidate), _not_made(right, reference)
    return alike | _by_tokens(left, right, tokens[_SURE:])


_SURE = 2
"""Tokens of data, content and then name with shape, of which a match needs no second look."""


def _not_made(data: list[Call], other: Sequence[Call]) -> list[Call]:
    """Those whose contents the other run does not make, as far as contents tell that are one but for noise."""
    made: dict[tuple[int, ...], list[TensorRecord]] = {}
    for call in other:
        if call.kind is CallKind.OPERATOR:
            for record in call.with_role(Role.OUTPUT):
                made.setdefault(record.shape, []).append(record)
    return [
        call for call in data if not any(map(partial(_is_among, made), call.with_role(Role.OUTPUT)))
    ]


def _is_among(made: Mapping[tuple[int, ...], list[TensorRecord]], one: TensorRecord) -> bool:
    telling = one.content.numel >= _TELLING
    return telling and any(
        one.digest == other.digest or is_near(one, other) for other in made.get(one.shape, ())
    )


_WITHOUT_ORDER = frozenset({CallKind.GRADIENT, CallKind.OPTIMIZER})
"""Kinds whose order means nothing: autograd accumulates gradients in whatever order a kernel's node
lists them."""


def _by_tokens(
    left: list[Call], right: list[Call], tokens: Iterable[tuple[Token, str]]
) -> dict[int, tuple[int, str]]:
    """The n-th call of a name with the n-th of the other side, strictest names first."""
    partners: dict[int, tuple[int, str]] = {}
    for token, method in tokens:
        before = [token(call) for call in left]
        after = [token(call) for call in right]
        matches = pair_in_order(before, after)
        partners.update({left[i].id: (right[j].id, method) for i, j in matches})
        taken = {j for _, j in matches}
        left = [call for call in left if call.id not in partners]
        right = [call for j, call in enumerate(right) if j not in taken]
        if not left or not right:
            break
    return partners


def _gaps_between(
    left: list[Call], right: list[Call], matches: list[Match]
) -> list[tuple[list[Call], list[Call]]]:
    ends = [(-1, -1), *matches, (len(left), len(right))]
    gaps = [(left[a + 1 : c], right[b + 1 : d]) for (a, b), (c, d) in itertools.pairwise(ends)]
    return [(before, after) for before, after in gaps if before and after]


def _tokens(kind: CallKind) -> tuple[tuple[Token, str], ...]:
    """What must be equal for two calls to correspond, strictest first, each with its name."""
    if kind is CallKind.OPERATOR:
        return (
            (lambda call: (call.site.op, _output_digests(call)), "operator, content and order"),
            (
                lambda call: (_operator(call), _output_shapes(call), _arguments(call)),
                "operator, shape and order",
            ),
            (lambda call: (_operator(call), _output_shapes(call)), "operator, shape and order"),
            (_operator, "operator and order"),
        )
    if kind is CallKind.MODULE:
        return (
            (_input_digests, "module path, content and order"),
            (_output_shapes, "module path, shape and order"),
            (lambda call: "", "module path and order"),
        )
    if kind is CallKind.DATA:
        return (
            (_output_digests, "content"),
            (lambda call: (_names(call), _output_shapes(call)), "name and shape"),
            (_shapes_of_many, "shape"),
            (_names, "name"),
        )
    if kind in (CallKind.GRADIENT, CallKind.OPTIMIZER):
        return ((_names, "parameter name"),)
    return ((lambda call: "", "order"),)


def _operator(call: Call) -> Hashable:
    """An operator, and for a product over how many terms it sums: half of a product is another one."""
    product = operator_of(call.site.op).product
    if product is None or product.contracted is None or product.contracted[0] != -1:
        return call.site.op
    inputs = call.with_role(Role.INPUT)
    if len(inputs) <= product.left or not inputs[product.left].shape:
        return call.site.op
    return call.site.op, inputs[product.left].shape[-1]


def _output_shapes(call: Call) -> Hashable:
    return tuple(record.shape for record in call.records if record.role is Role.OUTPUT)


def _output_shapes_of(call: Call) -> Hashable:
    op = "" if call.kind is CallKind.MODULE else call.site.op
    return op, _output_shapes(call)


def _output_digests(call: Call) -> Hashable:
    return _digests(call, Role.OUTPUT)


def _input_digests(call: Call) -> Hashable:
    """A run may call a module more often, as for a target that the other computes without gradients."""
    return _digests(call, Role.INPUT)


def _digests(call: Call, role: Role) -> Hashable:
    """Digests of tensors large enough not to be equal by chance, else something nothing equals."""
    records = call.with_role(role)
    digests = tuple(record.digest for record in records)
    telling = any(record.content.numel >= _TELLING for record in records)
    return digests if telling and None not in digests else _Unlike(call.sequence)


def _shapes_of_many(call: Call) -> Hashable:
    """Shapes of what is more than a number, as a loop may hand over many of."""
    outputs = call.with_role(Role.OUTPUT)
    many = any(record.content.numel > 1 for record in outputs)
    return _output_shapes(call) if many else _Unlike(call.sequence)


@dataclass(frozen=True, eq=False)
class _Unlike:
    """A token that equals no other."""

    sequence: int


def _arguments(call: Call) -> str:
    return json.dumps(call.arguments, sort_keys=True, default=str) if call.arguments else ""


def _names(call: Call) -> Hashable:
    if call.kind in (CallKind.GRADIENT, CallKind.OPTIMIZER):
        return next((r.name for r in call.records if r.role in (Role.PARAM, Role.PARAM_GRAD)), "")
    return tuple(record.name for record in call.records)


def _in_time(
    reference: Sequence[Call],
    candidate: Sequence[Call],
    partners: dict[int, tuple[int, str, bool]],
    names: NameMap,
) -> list[CallPair]:
    by_candidate = {right: left for left, (right, _, _) in partners.items()}
    candidates = {call.id: call for call in candidate}
    placed: list[tuple[tuple[int, int, int], CallPair]] = []
    for call in reference:
        right, method, only_results = partners.get(call.id, (None, "none", False))
        partner = candidates[right] if right is not None else None
        method = (names.how(partner) if partner is not None else "") or method
        placed.append(((call.sequence, 0, 0), CallPair(call, partner, method, only_results)))
    sequences = {call.id: call.sequence for call in reference}
    latest = -1
    for call in candidate:
        if call.id in by_candidate:
            latest = max(latest, sequences[by_candidate[call.id]])
        else:
            placed.append(((latest, 1, call.sequence), CallPair(None, call, "none")))
    return [pair for _, pair in sorted(placed, key=lambda item: item[0])]
