"""Align calls without partner by their results: a fused operator with the last of its parts, one call with several.

Inside of each pair of aligned module calls, the calls that found no partner by name are matched by
their outputs: mutual nearest neighbours among tensors of one shape, as near as noise, and clearly
nearer than the next. So a wrong pair cannot raise an alarm: what differs by more than noise is not
matched here, stays without partner, and is judged at the boundary of its region.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Evidence, Pair
from lockstep.core.operators import canonical_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.measure.axis_order import other_layout
from lockstep.measure.measured_pair import measure_pair

_TELLING = 16
"""Elements from which on near contents mean the same tensor rather than chance."""

_NEAR = 64.0
"""Unit roundoffs that equal tensors of two runs may be off. Chosen between the noise of a few
operators (some unit roundoffs) and what a fault leaves."""

_INHERITED = 4.0
"""Times the difference of what enters the module around that they may be off."""

_FARTHEST = 0.01
"""Relative distance beyond which nothing is matched, whatever the dtype: a residual branch may be as
small as this."""

_CLEARLY = 8.0
"""How many times farther the next nearest tensor must be."""

_MAX_RIVALS = 32
"""Tensors of one shape in nearly one place from which on nothing is looked for."""

_REACH = 1.25
"""Widens the window of places by the spread of sketched distances and norms."""


@dataclass(frozen=True, slots=True)
class ContentPartner:
    """Two calls that return the same tensor."""

    reference: Call
    candidate: Call
    method: str
    only_results: bool


def align_by_content(
    reference: Sequence[Call], candidate: Sequence[Call], partners: Mapping[int, int]
) -> Iterator[ContentPartner]:
    """Match calls without partner by their only output.

    reference, candidate: All calls of one step, in order of time.
    partners: Candidate call by reference call, as found so far.
    """
    back = {right: left for left, right in partners.items()}
    calls = {call.id: call for call in reference}, {call.id: call for call in candidate}
    lefts = _by_region(reference, partners.keys(), lambda parent: parent)
    rights = _by_region(candidate, back.keys(), lambda parent: back.get(parent, -1))
    for region, ours in lefts.items():
        theirs = rights.get(region)
        if theirs:
            around = region[0]
            pair = (calls[0].get(around), calls[1].get(partners.get(around, -1)))
            yield from _match_region(ours, theirs, _difference_entering(*pair))


_Region = tuple[int, bool]


def _by_region(
    calls: Sequence[Call], aligned: Iterable[int], name_of: Callable[[int], int]
) -> dict[_Region, list[Call]]:
    """Calls without partner that return one new tensor, by the aligned module call around them."""
    known, by_id = frozenset(aligned), {call.id: call for call in calls}
    containers = {call.parent for call in calls}
    seen = {
        record.content.id
        for call in calls
        if call.id in known and call.id not in containers
        for record in call.with_role(Role.OUTPUT)
    }
    regions: dict[_Region, list[Call]] = defaultdict(list)
    for call in calls:
        makes = call.kind is CallKind.OPERATOR or (
            call.kind is CallKind.MODULE and call.id not in containers
        )
        if call.id in known or not makes:
            continue
        output = _only_output(call)
        if output is None or output.content.id in seen:
            continue
        seen.add(output.content.id)
        parent = call.parent
        while parent in by_id and parent not in known:
            parent = by_id[parent].parent
        regions[name_of(parent) if parent in known else -1, call.recomputed].append(call)
    return regions


def _only_output(call: Call) -> TensorRecord | None:
    """The output of a call that has one, if it tells anything."""
    outputs = call.with_role(Role.OUTPUT)
    if len(outputs) != 1 or outputs[0].content.numel < _TELLING:
        return None
    numbers = outputs[0].statistics
    if numbers is None or not is_floating(outputs[0].dtype) or numbers.minimum == numbers.maximum:
        return None
    return outputs[0] if 0 < numbers.norm < math.inf else None


def _difference_entering(reference: Call | None, candidate: Call | None) -> float:
    """Worst relative difference among the tensors that enter the module call around."""
    if reference is None or candidate is None:
        return 0.0
    inputs = zip(reference.with_role(Role.INPUT), candidate.with_role(Role.INPUT), strict=False)
    return max((_distance(one, other) for one, other in inputs), default=0.0)


def _distance(left: TensorRecord, right: TensorRecord) -> float:
    """Relative distance, infinite where it is not known; of two layouts a lower bound."""
    measured = measure_pair(_paired(left, right))
    known = measured.known and not measured.shape_differs
    return measured.difference if known else math.inf


def _paired(left: TensorRecord, right: TensorRecord) -> Pair:
    return Pair(left, right, layout=other_layout(left.content, right.content))


def _limit(left: TensorRecord, right: TensorRecord, entering: float) -> float:
    return _limit_of(max(unit_roundoff(left.dtype), unit_roundoff(right.dtype)), entering)


def _limit_of(unit: float, entering: float) -> float:
    inherited = _INHERITED * entering if math.isfinite(entering) else 0.0
    return min(_FARTHEST, max(_NEAR * unit, inherited))


def _match_region(
    ours: list[Call], theirs: list[Call], entering: float
) -> Iterator[ContentPartner]:
    matches = _match_shapes(ours, theirs, entering, same_layout=True)
    known = {call.id for call, _ in matches}, {call.id for _, call in matches}
    ours = [call for call in ours if call.id not in known[0]]
    theirs = [call for call in theirs if call.id not in known[1]]
    matches += _match_shapes(ours, theirs, entering, same_layout=False)
    for left, right in _in_order_of_time(matches):
        yield _partner(left, right, entering)


def _in_order_of_time(matches: list[tuple[Call, Call]]) -> list[tuple[Call, Call]]:
    """Matches that cross no other: what happens later on one side happens later on the other."""
    matches = sorted(matches, key=lambda match: match[0].sequence)
    after = [right.sequence for _, right in matches]
    latest_before = list(itertools.accumulate(after, max, initial=-1))
    earliest_behind = list(itertools.accumulate(reversed(after), min, initial=math.inf))[::-1]
    return [
        match
        for at, match in enumerate(matches)
        if latest_before[at] < after[at] < earliest_behind[at + 1]
    ]


def _match_shapes(
    ours: list[Call], theirs: list[Call], entering: float, *, same_layout: bool
) -> list[tuple[Call, Call]]:
    """Match among calls whose outputs have one shape or, else, the same extents."""
    buckets: dict[Hashable, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for side, calls in enumerate((ours, theirs)):
        for call in calls:
            shape = _output(call).shape
            buckets[shape if same_layout else tuple(sorted(shape))][side].append(call)
    found: list[tuple[Call, Call]] = []
    for lefts, rights in buckets.values():
        if lefts and rights:
            sketched = all(_output(call).content.sketch is not None for call in (*lefts, *rights))
            place = _first_bucket if same_layout and sketched else _norm
            found.extend(_nearest(lefts, rights, entering, place))
    return found


_Place = Callable[[Call], float]


def _nearest(
    lefts: list[Call], rights: list[Call], entering: float, place: _Place
) -> Iterator[tuple[Call, Call]]:
    """Mutual nearest neighbours, each clearly nearer than any other."""
    near = _near_pairs(lefts, rights, entering, place)
    forth = _clear_winners(near)
    back = _clear_winners((right, left, distance) for left, right, distance in near)
    for left, right, _ in near:
        if forth.get(left.id) is right and back.get(right.id) is left:
            yield left, right


def _near_pairs(
    lefts: list[Call], rights: list[Call], entering: float, place: _Place
) -> list[tuple[Call, Call, float]]:
    """Pairs as near as noise. Only those are measured whose places are near, as no place of two
    tensors can be farther apart than the tensors are."""
    lines = tuple(sorted((place(call), call.id) for call in calls) for calls in (lefts, rights))
    by_id = {call.id: call for call in rights}
    coarsest = max(unit_roundoff(_output(call).dtype) for call in (*lefts, *rights))
    farthest = _limit_of(coarsest, entering)
    found = []
    for left in lefts:
        reach = _REACH * farthest * _norm(left)
        ends = (place(left) - reach, -1), (place(left) + reach, math.inf)
        crowd = [line[bisect_left(line, ends[0]) : bisect_left(line, ends[1])] for line in lines]
        if max(len(one) for one in crowd) > _MAX_RIVALS:
            continue
        for _, number in crowd[1]:
            right = by_id[number]
            distance = _distance(_output(left), _output(right))
            if distance <= _limit(_output(left), _output(right), entering):
                found.append((left, right, distance))
    return found


def _clear_winners(near: Iterable[tuple[Call, Call, float]]) -> dict[int, Call]:
    """Per first call the nearest second one, where it is clearly the nearest."""
    rivals: dict[int, list[tuple[float, int, Call]]] = defaultdict(list)
    for call, other, distance in near:
        rivals[call.id].append((distance, other.sequence, other))
    winners = {}
    for number, found in rivals.items():
        found.sort(key=lambda item: item[:2])
        distance, _, best = found[0]
        least = _CLEARLY * max(distance, unit_roundoff(_output(best).dtype))
        if len(found) == 1 or found[1][0] > least:
            winners[number] = best
    return winners


def _partner(left: Call, right: Call, entering: float) -> ContentPartner:
    measured = measure_pair(_paired(_output(left), _output(right)))
    method = "content (equal)"
    if not measured.equal:
        words = {Evidence.SKETCH: "nearest sketch", Evidence.STATISTICS: "nearest statistics"}
        word = words.get(measured.metrics.evidence, "nearest tensor")
        method = f"content ({word}, rel {measured.difference:.1g})"
    return ContentPartner(left, right, method, not _takes_the_same(left, right, entering))


def _takes_the_same(left: Call, right: Call, entering: float) -> bool:
    """Whether two calls are of the same operator and all that goes in is as near."""
    inputs = left.with_role(Role.INPUT), right.with_role(Role.INPUT)
    return (
        canonical_name(left.site.op) == canonical_name(right.site.op)
        and len(inputs[0]) == len(inputs[1])
        and all(
            _distance(one, other) <= _limit(one, other, entering)
            for one, other in zip(*inputs, strict=True)
        )
    )


def takes_alike(left: Call, right: Call) -> bool:
    """Return whether two calls may have the same inputs: equally many tensors, of one shape, and no two further
    apart than a difference before them.
    """
    inputs = left.with_role(Role.INPUT), right.with_role(Role.INPUT)
    return len(inputs[0]) == len(inputs[1]) and all(
        one.shape == other.shape and not _distance(one, other) > _FARTHEST
        for one, other in zip(*inputs, strict=True)
    )


def is_near(left: TensorRecord, right: TensorRecord) -> bool:
    """Whether two tensors of one shape may be one, computed in two ways."""
    return left.shape == right.shape and _distance(left, right) <= _FARTHEST


def _output(call: Call) -> TensorRecord:
    return call.with_role(Role.OUTPUT)[0]


def _norm(call: Call) -> float:
    statistics = _output(call).statistics
    return statistics.norm if statistics is not None else 0.0


def _first_bucket(call: Call) -> float:
    sketch = _output(call).content.sketch
    return float(sketch[0]) if sketch is not None else 0.0


# One call of one run that the other run makes in several, each on a part of the rows: a loss or a layer in chunks.
#
# None of the parts is the partner of the whole. They stay without partner, and are judged together: by what enters
# all of them, and by what is made of them.

Shapes = tuple[tuple[Role, int, tuple[int, ...]], ...]


def calls_in_parts(
    reference: Sequence[Call],
    candidate: Sequence[Call],
    partners: Mapping[int, int],
    kind: CallKind,
) -> set[int]:
    """Return the numbers of the reference's calls whose partner does a different part of the work.

    Of one module or operator, the calls that have no partner of their own shapes are looked at: one run makes more of
    them than the other, and each of their tensors has one shape in all of them, or as many elements in all of one
    run's as in all of the other's.

    partners: The candidate's call of each reference call that has one.
    kind: Modules or operators.
    """
    sides = [[one for one in calls if one.kind is kind] for calls in (reference, candidate)]
    paired = partners.keys(), set(partners.values())
    more = {
        _what(call)
        for side, known in zip(sides, paired, strict=True)
        for call in side
        if call.id not in known
    }
    if not more:
        return set()
    left, right = ([one for one in side if _what(one) in more] for side in sides)
    by_id = {one.id: one for one in right}
    alike = {
        one.id: partners[one.id]
        for one in left
        if (partner := by_id.get(partners.get(one.id, -1))) and _shapes(one) == _shapes(partner)
    }
    taken = set(alike.values())
    groups: dict[Hashable, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for number, (calls, known) in enumerate(((left, alike.keys()), (right, taken))):
        for call in calls:
            if call.id not in known:
                groups[_what(call)][number].append(call)
    return {
        call.id
        for some, others in groups.values()
        if some and others and len(some) != len(others) and _are_one_in_all(some, others)
        for call in some
        if call.id in partners
    }


def _what(call: Call) -> Hashable:
    name = "" if call.kind is CallKind.MODULE else canonical_name(call.site.op)
    return call.kind, call.site.phase, call.recomputed, call.site.module, name


def _shapes(call: Call) -> Shapes:
    roles = (Role.INPUT, Role.OUTPUT)
    return tuple((one.role, one.index, one.shape) for one in call.with_role(*roles))


def _are_one_in_all(left: Sequence[Call], right: Sequence[Call]) -> bool:
    """Whether the calls of both runs together take and return as much."""
    sides = [_shapes(call) for call in left], [_shapes(call) for call in right]
    places = {tuple(shape[:2] for shape in one) for one in chain(*sides)}
    if len(places) != 1:
        return False
    in_parts = False
    for place in range(len(sides[0][0])):
        shapes = [[one[place][2] for one in side] for side in sides]
        if len({*chain(*shapes)}) == 1:
            continue
        in_parts = True
        counts = [sum(map(math.prod, side)) for side in shapes]
        if counts[0] != counts[1]:
            return False
    return in_parts
