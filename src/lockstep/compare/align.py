"""Finding which call of one run corresponds to which call of the other.

Modules are aligned by path and order; operators inside an aligned module call by name, shape and
order. The alignment of two sequences is a longest common subsequence, found in near-linear time for
the usual case of almost equal sequences: equal ends are stripped, then tokens that occur once on
each side serve as anchors (patience diff: Bram Cohen, 2008), and only what lies between them goes
through dynamic programming. So one call more on one side shifts nothing else.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence

from lockstep.core.finding import CallPair, Pair
from lockstep.core.record import Call, TensorRecord
from lockstep.core.site import CallKind, Role

Match = tuple[int, int]
Token = Callable[[Call], Hashable]

_MAX_CELLS = 400_000
"""Cap on one dynamic-programming table; a larger gap without anchors is paired token by token, in
order."""

_TELLING = 16
"""Elements from which on equal digests of two runs mean the same place rather than chance."""


def align_sequences(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[Match]:
    """Positions `(i, j)` of a long common subsequence, both increasing.

    Examples
    --------
    >>> align_sequences("abcd", "abxcd")
    [(0, 0), (1, 1), (2, 3), (3, 4)]
    """
    found: list[Match] = []
    gaps = [(0, len(left), 0, len(right))]
    while gaps:
        low, high, start, stop = gaps.pop()
        while low < high and start < stop and left[low] == right[start]:
            found.append((low, start))
            low, start = low + 1, start + 1
        while low < high and start < stop and left[high - 1] == right[stop - 1]:
            high, stop = high - 1, stop - 1
            found.append((high, stop))
        if low == high or start == stop:
            continue
        anchors = _anchors(left, right, (low, high, start, stop))
        if not anchors:
            found.extend(_align_gap(left, right, (low, high, start, stop)))
            continue
        found.extend(anchors)
        ends = [(low - 1, start - 1), *anchors, (high, stop)]
        gaps.extend((a + 1, c, b + 1, d) for (a, b), (c, d) in itertools.pairwise(ends))
    return sorted(found)


def _anchors(
    left: Sequence[Hashable], right: Sequence[Hashable], gap: tuple[int, int, int, int]
) -> list[Match]:
    """Tokens that occur once on each side, the longest run of them that keeps the order."""
    low, high, start, stop = gap
    once_left, once_right = _once(left, low, high), _once(right, start, stop)
    common = [(i, once_right[token]) for token, i in once_left.items() if token in once_right]
    return _longest_increasing(sorted(common))


def _once(tokens: Sequence[Hashable], low: int, high: int) -> dict[Hashable, int]:
    seen: dict[Hashable, int] = {}
    for position in range(low, high):
        token = tokens[position]
        seen[token] = -1 if token in seen else position
    return {token: position for token, position in seen.items() if position >= 0}


def _longest_increasing(matches: list[Match]) -> list[Match]:
    """Longest subsequence with increasing second members (patience sorting, n log n)."""
    tops: list[int] = []
    top_positions: list[int] = []
    before: list[int] = []
    for position, (_, second) in enumerate(matches):
        pile = bisect_left(tops, second)
        before.append(top_positions[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(second)
            top_positions.append(position)
        else:
            tops[pile], top_positions[pile] = second, position
    chain: list[Match] = []
    position = top_positions[-1] if top_positions else -1
    while position >= 0:
        chain.append(matches[position])
        position = before[position]
    return chain[::-1]


def _align_gap(
    left: Sequence[Hashable], right: Sequence[Hashable], gap: tuple[int, int, int, int]
) -> list[Match]:
    low, high, start, stop = gap
    if (high - low) * (stop - start) > _MAX_CELLS:
        return _longest_increasing(_in_order(left, right, gap))
    width = stop - start + 1
    lengths = [[0] * width for _ in range(high - low + 1)]
    for i in range(high - 1, low - 1, -1):
        row, below = lengths[i - low], lengths[i - low + 1]
        for j in range(stop - 1, start - 1, -1):
            at = j - start
            row[at] = 1 + below[at + 1] if left[i] == right[j] else max(below[at], row[at + 1])
    found, i, j = [], low, start
    while i < high and j < stop:
        if left[i] == right[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i - low + 1][j - start] >= lengths[i - low][j - start + 1]:
            i += 1
        else:
            j += 1
    return found


def _in_order(
    left: Sequence[Hashable], right: Sequence[Hashable], gap: tuple[int, int, int, int]
) -> list[Match]:
    """The n-th occurrence of a token with the n-th on the other side."""
    low, high, start, stop = gap
    places: dict[Hashable, list[int]] = {}
    for j in range(stop - 1, start - 1, -1):
        places.setdefault(right[j], []).append(j)
    return [(i, places[left[i]].pop()) for i in range(low, high) if places.get(left[i])]


def align_calls(reference: Sequence[Call], candidate: Sequence[Call]) -> list[CallPair]:
    """Align the calls of one step of one rank.

    Every call appears in exactly one pair, alone where it has no partner. Module calls come first,
    because an operator is looked for only inside the partner of the module call around it. The
    result is in order of time: by the reference's sequence, a candidate call without partner right
    after the candidate's call before it.
    """
    partners: dict[int, tuple[int, str]] = {}
    groups = _grouped(reference, candidate, _ALL_BUT_OPERATORS, {})
    for left, right in groups:
        partners.update(_aligned_group(left, right))
    same_parent = {right: left for left, (right, _) in partners.items()}
    for left, right in _grouped(reference, candidate, {CallKind.OPERATOR}, same_parent):
        partners.update(_aligned_group(left, right))
    return _in_time(reference, candidate, partners)


_ALL_BUT_OPERATORS = frozenset(CallKind) - {CallKind.OPERATOR}


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
            if side == 1:
                parent = same_parent.get(call.parent, -1)
            else:
                parent = call.parent if call.parent in aligned_parents else -1
            where = call.site.module
            key = (call.kind, call.site.phase, call.recomputed, parent, where)
            groups.setdefault(key, ([], []))[side].append(call)
    return list(groups.values())


def _aligned_group(left: list[Call], right: list[Call]) -> dict[int, tuple[int, str]]:
    """Partner and method of every reference call of one group that has one."""
    if not left or not right:
        return {}
    if left[0].kind in _WITHOUT_ORDER:
        return _aligned_by_name(left, right)
    if [_output_shapes_of(call) for call in left] == [_output_shapes_of(call) for call in right]:
        # Nothing to decide: contents that happen to be equal must not pull two calls together.
        pairs = zip(left, right, strict=True)
        return {before.id: (after.id, "operator, shape and order") for before, after in pairs}
    partners: dict[int, tuple[int, str]] = {}
    gaps = [(left, right)]
    for token, method in _tokens(left[0].kind):
        remaining = []
        for before, after in gaps:
            matches = align_sequences(
                [token(call) for call in before], [token(call) for call in after]
            )
            partners.update({before[i].id: (after[j].id, method) for i, j in matches})
            remaining.extend(_gaps_between(before, after, matches))
        gaps = remaining
    if left[0].kind is CallKind.OPERATOR:
        for before, after in gaps:
            if len(before) == len(after) == 1 and _output_shapes(before[0]) == _output_shapes(
                after[0]
            ):
                partners[before[0].id] = (after[0].id, "same place")
    return partners


_WITHOUT_ORDER = frozenset({CallKind.GRADIENT, CallKind.OPTIMIZER, CallKind.DATA})
"""Kinds whose order means nothing: autograd accumulates gradients in whatever order a kernel's node
lists them."""


def _aligned_by_name(left: list[Call], right: list[Call]) -> dict[int, tuple[int, str]]:
    """The n-th call of a name with the n-th of the other side, strictest names first."""
    partners: dict[int, tuple[int, str]] = {}
    for token, method in _tokens(left[0].kind):
        before = [token(call) for call in left]
        after = [token(call) for call in right]
        matches = _in_order(before, after, (0, len(left), 0, len(right)))
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
                lambda call: (call.site.op, _output_shapes(call), _arguments(call)),
                "operator, shape and order",
            ),
            (lambda call: (call.site.op, _output_shapes(call)), "operator, shape and order"),
            (lambda call: call.site.op, "operator and order"),
        )
    if kind is CallKind.MODULE:
        return (
            (_output_shapes, "module path, shape and order"),
            (lambda call: "", "module path and order"),
        )
    if kind is CallKind.DATA:
        return (
            (lambda call: (_names(call), _output_shapes(call)), "name and shape"),
            (_names, "name"),
            (lambda call: "", "order"),
        )
    if kind in (CallKind.GRADIENT, CallKind.OPTIMIZER):
        return ((_names, "parameter name"),)
    return ((lambda call: "", "order"),)


def _output_shapes(call: Call) -> Hashable:
    return tuple(record.shape for record in call.records if record.role is Role.OUTPUT)


def _output_shapes_of(call: Call) -> Hashable:
    op = "" if call.kind is CallKind.MODULE else call.site.op
    return op, _output_shapes(call)


def _output_digests(call: Call) -> Hashable:
    """Digests of outputs large enough not to be equal by chance, else something nothing equals."""
    outputs = call.with_role(Role.OUTPUT)
    digests = tuple(record.digest for record in outputs)
    telling = any(record.content.numel >= _TELLING for record in outputs)
    return digests if telling and None not in digests else id(call)


def _arguments(call: Call) -> str:
    return json.dumps(call.arguments, sort_keys=True, default=str) if call.arguments else ""


def _names(call: Call) -> Hashable:
    if call.kind in (CallKind.GRADIENT, CallKind.OPTIMIZER):
        return next((r.name for r in call.records if r.role in (Role.PARAM, Role.PARAM_GRAD)), "")
    return tuple(record.name for record in call.records)


def _in_time(
    reference: Sequence[Call], candidate: Sequence[Call], partners: dict[int, tuple[int, str]]
) -> list[CallPair]:
    by_candidate = {right: (left, method) for left, (right, method) in partners.items()}
    candidates = {call.id: call for call in candidate}
    placed: list[tuple[tuple[int, int, int], CallPair]] = []
    for call in reference:
        right, method = partners.get(call.id, (None, "none"))
        partner = candidates[right] if right is not None else None
        placed.append(((call.sequence, 0, 0), CallPair(call, partner, method)))
    sequences = {call.id: call.sequence for call in reference}
    latest = -1
    for call in candidate:
        if call.id in by_candidate:
            latest = max(latest, sequences[by_candidate[call.id][0]])
        else:
            placed.append(((latest, 1, call.sequence), CallPair(None, call, "none")))
    return [pair for _, pair in sorted(placed, key=lambda item: item[0])]


def pair_records(pair: CallPair) -> list[Pair]:
    """Pair the records of two aligned calls, in order of time; a record without partner stands
    alone.

    Records correspond when phase, role, occurrence and name are equal (an argument that is no
    tensor on one side moves the indices of those behind it); what is left, where only the name
    differs (an operator spelled in another way), by index.
    """
    if pair.reference is None or pair.candidate is None:
        return _lone_records(pair.present, is_reference=pair.reference is not None)
    waiting = list(pair.candidate.records)
    chosen: dict[int, TensorRecord] = {}
    for key in (_full_key, _loose_key):
        places: dict[Hashable, list[TensorRecord]] = {}
        for record in reversed(waiting):
            places.setdefault(key(record), []).append(record)
        for position, record in enumerate(pair.reference.records):
            if position not in chosen and places.get(key(record)):
                chosen[position] = places[key(record)].pop()
        taken = {id(record) for record in chosen.values()}
        waiting = [record for record in waiting if id(record) not in taken]
        if not waiting:
            break
    pairs = [Pair(record, chosen.get(at)) for at, record in enumerate(pair.reference.records)]
    return pairs + [Pair(None, record) for record in waiting]


def _lone_records(call: Call, *, is_reference: bool) -> list[Pair]:
    if is_reference:
        return [Pair(record, None) for record in call.records]
    return [Pair(None, record) for record in call.records]


def _full_key(record: TensorRecord) -> Hashable:
    return (record.site.phase, record.role, record.occurrence, record.name)


def _loose_key(record: TensorRecord) -> Hashable:
    return (record.site.phase, record.role, record.occurrence, record.index)
