"""Compare two trainings after their recorded steps: their losses, and their state at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockstep.core.content_notes import NoteKind
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Course, Ends
from lockstep.core.records import Content
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Role
from lockstep.core.states import LaterLoss, Standing
from lockstep.judge.tolerances import END_ROUNDINGS, PARTED_STEPS
from lockstep.locate.ends.training_sides import (
    SIDES,
    Side,
    absolute,
    beside,
    further_apart,
    is_equal,
    norm,
    relative,
)
from lockstep.locate.flow.rounding_alone import NO_STEPS, RoundingAlone

if TYPE_CHECKING:
    from lockstep.locate.ends.held_outside import HeldOutside


@dataclass(frozen=True, slots=True)
class RankEnds:
    """How the trainings of one rank went on.

    `is_beside` tells that no loss can tell where they part, `is_outside` that variables of the scripts alone do.
    """

    course: Course
    reasons: tuple[Remark, ...] = ()
    certain: bool = False
    parted_at: int | None = None
    is_beside: bool = False
    is_outside: bool = False
    notes: tuple[Remark, ...] = ()


def course_of(
    reference: Side,
    candidate: Side,
    *,
    equal: bool,
    rounding_alone: RoundingAlone = NO_STEPS,
) -> RankEnds:
    """Return how the trainings of one rank went on.

    reference, candidate: The two.
    equal: Whether all that was recorded of their steps is equal bit by bit.
    rounding_alone: Which gradients of these steps are zero but for rounding.
    """
    sides = (reference, candidate)
    if unlike := _unlike_copies(sides):
        return RankEnds(Course.APART, (unlike,), certain=True)
    last = [state.step for side in sides for state in list(side.last.values())[:1]]
    if len(set(last)) > 1:
        return RankEnds(Course.UNKNOWN, (Remark(On.OTHER_LAST_STEP),))
    parted = _first_other_loss(sides) if equal else None
    if parted is not None:
        return _parted(sides, parted)
    if reason := _not_comparable(sides):
        return RankEnds(Course.UNKNOWN, (reason,))
    left, right, unit = _lengths(sides)
    if left != right:
        lengths = Remark(On.LENGTHS, reference=str(left), candidate=str(right), at=unit)
        return RankEnds(Course.APART, (lengths,))
    if other := _other_course(sides):
        return RankEnds(Course.APART, (other,), certain=True)
    if cut := next((side.end_cut for side in sides if side.end_cut), ""):
        return RankEnds(Course.UNKNOWN, (Remark(On.UNJOINED, reason=cut),))
    from lockstep.locate.ends.held_outside import (  # long, for runs that agree
        held_beyond_noise,
        held_outside,
    )

    if not equal:
        return RankEnds(Course.NOISE, notes=held_beyond_noise(*sides))
    found = _equal_or_not(sides, rounding_alone)
    if found.course is Course.NOISE:
        return replace(found, notes=held_beyond_noise(*sides))
    return _with_held(held_outside(*sides)) if found.course is Course.EQUAL else found


def _with_held(held: HeldOutside) -> RankEnds:
    """What the scripts hold beside, where all else is equal."""
    if held.differs:
        return RankEnds(Course.APART, held.differs, held.certain, is_outside=True, notes=held.notes)
    if held.rounded:
        return RankEnds(Course.NOISE, notes=held.notes)
    return RankEnds(Course.EQUAL, held.unseen, notes=held.notes)


def _lengths(sides: tuple[Side, Side]) -> tuple[int, int, str]:
    """How long both were: in steps, or, where those of one were not counted, in losses behind the recorded ones."""
    if sides[0].steps is not None and sides[1].steps is not None:
        return sides[0].steps, sides[1].steps, "steps"
    left, right = (len(side.losses) for side in sides)
    return left, right, "backward passes after the recorded steps"


def _not_comparable(sides: tuple[Side, Side]) -> Remark | None:
    """Why the ends cannot be held against each other; None where they can."""
    without = [(name, side) for name, side in zip(SIDES, sides, strict=True) if not side.end]
    if len(without) == 2:
        return Remark(On.NO_ENDS)
    if without:
        name, side = without[0]
        if side.end_cut:
            return Remark(On.UNJOINED, reason=side.end_cut)
        return Remark(On.NO_END, side=name, reason=side.why_none)
    cut = [(name, side) for name, side in zip(SIDES, sides, strict=True) if side.ended_by]
    left, right, _ = _lengths(sides)
    if cut and left != right:
        name, side = cut[0]
        return Remark(On.OTHER_STEPS, side=name, reason=side.ended_by)
    return None


def _unlike_copies(sides: tuple[Side, Side]) -> Remark | None:
    """What ranks should hold alike at the end, and do not; None where nothing is more than roundings apart."""
    for name, side in zip(SIDES, sides, strict=True):
        unlike = [
            key
            for key, state in side.end.items()
            if state.content.told.kind is NoteKind.COPIES_APART
            and not float(state.content.told.fields[0])
            <= _copies_tolerance(state.content, state.step)
        ]
        if unlike:
            return Remark(On.COPIES, side=name, names=_names(unlike))
    return None


def _copies_tolerance(content: Content, steps: int) -> float:
    """How far copies of ranks may be apart: as what follows trained parameters may be."""
    if not is_floating(content.dtype):
        return 0.0
    return (END_ROUNDINGS + math.sqrt(steps)) * unit_roundoff(content.dtype)


# --- losses -------------------------------------------------------------------------------------


def _first_other_loss(sides: tuple[Side, Side]) -> int | None:
    """Place of the first loss that is not the same bit by bit, as far as both went."""
    for place, (left, right) in enumerate(zip(sides[0].losses, sides[1].losses, strict=False)):
        if left.step != right.step or not _same(left.value, right.value):
            return place
    return None


def _same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def _parted(sides: tuple[Side, Side], place: int) -> RankEnds:
    left, right = (side.losses[place] for side in sides)
    if left.step != right.step:
        step = min(left.step, right.step)
        other = Remark(On.OTHER_PASSES, step=step)
        return RankEnds(Course.APART, (other,), certain=True, parted_at=step)
    shown = [f"{one.value:.9g}" for one in (left, right)]
    loss = Remark(On.LOSS, step=left.step, reference=shown[0], candidate=shown[1])
    following = [
        pair
        for pair in zip(sides[0].losses[place:], sides[1].losses[place:], strict=False)
        if pair[0].step < left.step + PARTED_STEPS
    ]
    certain = any(_is_more_than_rounding(*pair) for pair in following)
    return RankEnds(Course.APART, (loss,), certain=certain, parted_at=left.step)


def _is_more_than_rounding(left: LaterLoss, right: LaterLoss) -> bool:
    if left.step != right.step or _same(left.value, right.value):
        return left.step != right.step
    if not (math.isfinite(left.value) and math.isfinite(right.value)):
        return True
    roundoff = max(unit_roundoff(left.dtype), unit_roundoff(right.dtype))
    size = max(abs(left.value), abs(right.value))
    return abs(left.value - right.value) > math.sqrt(roundoff) * size


# --- states -------------------------------------------------------------------------------------


def _equal_or_not(sides: tuple[Side, Side], rounding_alone: RoundingAlone) -> RankEnds:
    """What the states at the end say where recorded steps and later losses are equal bit by bit."""
    found = beside(*sides)
    left, right = (
        {key: state for key, state in side.end.items() if not found.is_idle(state)}
        for side in sides
    )
    alone = [
        key
        for key, state in (*left.items(), *right.items())
        # What one run alone had before is none of the end's, and said of the recorded steps.
        if (key in left) != (key in right)
        and (key in sides[0].last) == (key in sides[1].last)
        # A run that makes its model anew on resuming is none that trains otherwise.
        and state.standing not in (Standing.BESIDE, Standing.REPLACED)
    ]
    if alone:
        there = Remark(On.THERE_ALONE, side=SIDES[alone[0] not in left], names=_names(alone))
        return RankEnds(Course.APART, (there,), certain=True)
    both = [key for key in left if key in right]
    unread = [
        key for key in both if left[key].content.digest is None or right[key].content.digest is None
    ]
    others = [key for key in both if key not in unread and not is_equal(left[key], right[key])]
    tolerance = END_ROUNDINGS + math.sqrt(_lengths(sides)[0])
    beyond = [
        key
        for key in others
        if _is_beyond(left[key].content, right[key].content, tolerance)
        and not _is_of_rounding(key, sides, rounding_alone)
    ]
    untold = [key for key in others if math.isnan(relative(left[key].content, right[key].content))]
    if others and not (beyond or untold or unread):
        return RankEnds(Course.NOISE)
    if others:
        certain = bool(beyond)
        others = [*beyond, *(key for key in others if key not in beyond)]
        after = "after equal losses" if sides[0].losses else ""
        differs = Remark(On.DIFFERS, names=_names(others), at=after)
        is_beside = all(left[key].standing is Standing.BESIDE for key in others)
        return RankEnds(Course.APART, (differs,), certain=certain, is_beside=is_beside)
    if unread:
        why = left[unread[0]].content.note
        return RankEnds(Course.UNKNOWN, (Remark(On.UNREAD, names=_names(unread), reason=why),))
    return RankEnds(Course.EQUAL)


def _is_of_rounding(
    key: tuple[Role, str], sides: tuple[Side, Side], rounding_alone: RoundingAlone
) -> bool:
    """Whether a difference at the end may follow from a gradient that is zero but for rounding."""
    role, name = key
    ends = [side.end[key].content for side in sides]
    before = sides[0].last.get(key)
    steps = _lengths(sides)[0]
    if before is None or ends[0].dtype != ends[1].dtype or not is_floating(ends[0].dtype):
        return False
    if role is Role.STATE:
        return rounding_alone.allows_state(name, steps, before.content, *ends)
    far = absolute(*ends)
    return role is Role.PARAM and rounding_alone.allows_parameter(name, steps, far, ends[0].numel)


def _names(keys: Sequence[tuple[Role, str]]) -> tuple[str, ...]:
    """Names, those of parameters and buffers first."""
    ordered = sorted(keys, key=lambda key: key[0] is Role.STATE)
    return tuple(name.replace("|", "'s ") for _, name in ordered)


def _is_beyond(left: Content, right: Content, roundings: float) -> bool:
    """Whether two contents are further apart than so many roundings make them."""
    if left.dtype != right.dtype or not is_floating(left.dtype):
        return True
    return further_apart(left, right) > roundings * unit_roundoff(left.dtype)


def _other_course(sides: tuple[Side, Side]) -> Remark | None:
    """A parameter that one run leaves as it was at the last recorded step, and the other goes on to train."""
    found: dict[int, list[str]] = {0: [], 1: []}
    for key in sides[0].end:
        role, name = key
        if role is Role.STATE or any(key not in side.last or key not in side.end for side in sides):
            continue
        moved = [_moved(side.last[key].content, side.end[key].content) for side in sides]
        for index in (0, 1):
            if moved[index] == 0.0 and moved[1 - index] > 0.0:
                found[index].append(name)
    for index, names in found.items():
        if names:
            return Remark(On.STILL_ALONE, side=SIDES[index], names=tuple(names))
    return None


def _moved(last: Content, end: Content) -> float:
    """How far something went since the last recorded step; 0 where not one bit did, NaN where that is not clear."""
    if last.digest is None or end.digest is None:
        return math.nan
    apart = relative(last, end)
    roundoff = unit_roundoff(end.dtype)
    if apart == 0.0:
        return 0.0
    return apart if apart > math.sqrt(roundoff) or not is_floating(end.dtype) else math.nan


# --- over all ranks -----------------------------------------------------------------------------


def ends_between(
    sides: Mapping[str, tuple[Side, Side]],
    *,
    equal: bool,
    rounding_alone: Mapping[str, RoundingAlone] | None = None,
    every: Callable[[], Iterable[tuple[Side, Side]]] | None = None,
    count: int = 1,
) -> Ends:
    """How two trainings went on, of all ranks that both have.

    sides: The reference and the candidate, by rank.
    equal: Whether all that was recorded of their steps is equal bit by bit.
    rounding_alone: By rank, which gradients of these steps are zero but for rounding.
    every: Gives the sides of all ranks in order, those of equal ones that are not in `sides` too.
    count: How many ranks there are in all, if more than in `sides`.
    """
    known = rounding_alone or {}
    found = {
        name: course_of(*both, equal=equal, rounding_alone=known.get(name, NO_STEPS))
        for name, both in sides.items()
    }
    if not found:
        return Ends(Course.UNKNOWN, (Remark(On.NO_ENDS),))
    name, worst = min(found.items(), key=lambda item: _order(item[1]))
    far = _how_far(every or sides.values) if worst.course in (Course.NOISE, Course.APART) else _NEAR
    return Ends(
        worst.course,
        worst.reasons,
        worst.certain,
        worst.parted_at,
        _final_losses(sides[name]),
        far[0],
        far[2],
        far[1],
        _steps_to_record(sides[name], worst),
        worst.notes,
        rank=name if max(len(found), count) > 1 else "",
        others_apart=_others_apart(list(sides.values())) if far[0] == 0 else (),
    )


_NEAR = (math.nan, math.nan, "")


def _how_far(sides: Callable[[], Iterable[tuple[Side, Side]]]) -> tuple[float, float, str]:
    """How far apart all parameters ended, then the one that is furthest apart: how far, and its name.

    Equal parameters are no equal end where backward ran on after they were seen.
    """
    apart, size, furthest = 0.0, 0.0, (0.0, "")
    for left, right in sides():
        for key, state in left.end.items():
            other = right.end.get(key)
            if key[0] is not Role.PARAM or other is None or state.standing is Standing.REPLACED:
                continue
            one, two = state.content, other.content
            far = 0.0 if is_equal(state, other) else absolute(one, two)
            if not math.isnan(far):
                apart, size = math.hypot(apart, far), math.hypot(size, max(norm(one), norm(two)))
                furthest = max(furthest, (relative(one, two), key[1]))
    if size == 0 or (apart == 0 and any(map(_went_on, sides()))):
        return _NEAR
    return apart / size, furthest[0], furthest[1]


def _went_on(sides: tuple[Side, Side]) -> bool:
    """Whether a training went on after its parameters were last seen, as far as its losses tell."""
    return any(
        max((loss.step for loss in side.losses), default=-1)
        >= max((one.step for (role, _), one in side.end.items() if role is Role.PARAM), default=0)
        for side in sides
    )


def _others_apart(sides: Sequence[tuple[Side, Side]]) -> tuple[str, ...]:
    """Names of buffers and optimizer state that differ at the end."""
    keys = {
        key: None
        for left, right in sides
        for key, state in left.end.items()
        if key in right.end
        and key[0] is not Role.PARAM
        and state.standing is not Standing.BESIDE
        and not is_equal(state, right.end[key])
    }
    return _names(list(keys))


def _final_losses(sides: tuple[Side, Side]) -> tuple[float | None, float | None]:
    """The last loss of each, as far as both went."""
    count = min(len(side.losses) for side in sides)
    left, right = (side.losses[count - 1].value if count else None for side in sides)
    return left, right


def _steps_to_record(sides: tuple[Side, Side], ends: RankEnds) -> tuple[int, int] | None:
    """Steps that are to be recorded to see where the runs part, as a range without its end.

    A loss that differs is of the step in which the runs part, or of the one behind it. Where no loss tells, the runs
    part in the last step; without any loss the middle halves what is left. What variables of the scripts lead to is
    looked at when the trainings end, so that no step would tell.
    """
    if ends.course is not Course.APART or ends.is_outside:
        return None
    if ends.parted_at is not None:
        return max(0, ends.parted_at - 1), ends.parted_at + 1
    lengths = [side.steps for side in sides if side.steps is not None]
    until = min(lengths, default=1)
    if all(side.losses for side in sides) and not ends.is_beside:
        return max(0, until - 1), until
    first = min((state.step for side in sides for state in side.last.values()), default=0)
    first = max(0, min(first, until - 1))  # where every step was recorded, the last one
    return (first + until) // 2, (first + until) // 2 + 1


def _order(ends: RankEnds) -> tuple[int, bool, int]:
    courses = (Course.APART, Course.UNKNOWN, Course.NOISE, Course.EQUAL)
    parted = math.inf if ends.parted_at is None else ends.parted_at
    return courses.index(ends.course), not ends.certain, int(min(parted, 1 << 40))
