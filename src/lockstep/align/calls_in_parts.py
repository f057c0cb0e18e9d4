"""One call of one run that the other run makes in several, each on a part of the rows: a loss or a layer in chunks.

None of the parts is the partner of the whole. They stay without partner, and are judged together: by what enters all
of them, and by what is made of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain

from lockstep.core.operators import canonical_name
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role

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

    Parameters
    ----------
    partners
        The candidate's call of each reference call that has one.
    kind
        Modules or operators.
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
