"""Skip outputs that cannot hold a local error worth a re-run. Loads no torch.

A re-run of both sides finds a fault where one side is further from double precision than a sound kernel may always be.
Two things exclude that beforehand:

- The recordings hold the output as a formula, and both hold the same one over the same tensors of the call, an input
  moved, say, or a sum of two. The writer has shown each to the last bit (`lockstep.store.derived.search`), so both
  runs computed the same function of their own inputs, and all that differs came in with these.
- The two outputs are no further apart than a sound kernel may always be off. As

      |y_c - f64(x_c)|  <=  |y_c - y_r|  +  |y_r - f64(x_r)|  +  |f64(x_r) - f64(x_c)|
      candidate's local      difference     reference's local           inherited

  with the reference sound, a larger local error would have to cancel what is inherited, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lockstep.align.settings import are_set_otherwise
from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import CallPair
from lockstep.core.formulas import Formula, Stored, View
from lockstep.core.formulas import Operation as Computed
from lockstep.core.mapped import release_pages
from lockstep.core.operators import Family
from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, Operation, is_gradient
from lockstep.judge.tolerances import (
    KERNEL_ROUNDINGS,
    QUIET_ROUNDINGS,
    QUIET_UPDATE_ROUNDINGS,
    SENTINEL_MAGNITUDE,
    SINGLE,
)
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.held_results import always_allowed, carrier
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.store.stored_contents import StoredTensor

_SAMPLE = 4096
"""Elements that a median is taken over."""

_SHARE = 0.99
"""Of what is always allowed, up to which an output is left alone: a re-run adds it up in another order."""


def screened(operation: Operation, output: Measured, explained: Judgement) -> Judgement | None:
    """Judge one output or gradient without a re-run; None where only that can tell.

    explained: What is said of it without a re-run.

    Raises CannotReplay if a re-run would be refused.
    """
    if operation.family in (Family.RANDOM, Family.UNINITIALISED):
        raise CannotReplay("its result does not follow from its inputs")
    sides = None if operation.calls is None else _sides(operation.calls, output)
    if sides is None or are_set_otherwise(*(call.arguments for call, _ in sides)):
        return None
    gradient = is_gradient(output)
    moves = operation.family is Family.MOVEMENT and not gradient
    if _is_same_function(sides, (Role.INPUT, Role.GRAD_OUTPUT) if gradient else (Role.INPUT,)):
        return _exact(output) if moves else _handed_on(output)
    if moves or operation.family is Family.DROPOUT:  # exact in each element, or a fault
        return None
    units = {unit_roundoff(carrier(*side)) for side in sides}
    if max(units) < SINGLE:
        raise CannotReplay("it was computed in double precision itself")
    allowed = min(always_allowed(*side) for side in sides)
    if units == {SINGLE} and _is_quiet(output, allowed, explained):
        return _handed_on(output)
    if _drops_inside(operation) and not _can_draw_again(operation):
        raise CannotReplay("it drops elements inside; which ones was not recorded")
    return None


def screened_update(calls: CallPair, output: Measured, explained: Judgement) -> Judgement | None:
    """Judge a parameter or a state after an update without replaying it; None where only that can tell."""
    sides = _sides(calls, output)
    if sides is None:
        return None
    if _is_same_function(sides, (Role.PARAM, Role.PARAM_GRAD, Role.STATE)):
        return _handed_on(output)
    quiet = output.unit == SINGLE and _is_quiet(output, QUIET_UPDATE_ROUNDINGS, explained)
    return _handed_on(output) if quiet else None


def screened_passage(target: Measured, explained: Judgement) -> Judgement | None:
    """Judge a tensor after several calls without a re-run; None if only a re-run can."""
    quiet = target.floating and target.unit == SINGLE and not target.shape_differs
    return _handed_on(target) if quiet and _is_quiet(target, KERNEL_ROUNDINGS, explained) else None


def _drops_inside(operation: Operation) -> bool:
    """Whether attention leaves out weights at random: its `dropout_p`, by name or as the fifth argument."""
    dropped = operation.known.dropped
    share = None if dropped is None else dropped.of(operation.arguments)
    named = operation.name == "scaleddotproductattention"
    return named and isinstance(share, float) and share > 0


def _can_draw_again(operation: Operation) -> bool:
    """Whether both runs drew from the generator of a CPU in a state that was saved."""
    pair = operation.calls
    calls = () if pair is None else (pair.reference, pair.candidate)
    return bool(calls) and all(
        call is not None
        and call.random_state is not None
        and call.random_state.loader is not None
        and all(record.content.device == "cpu" for record in call.records)
        for call in calls
    )


_Sides = tuple[tuple[Call, TensorRecord], tuple[Call, TensorRecord]]


def _sides(calls: CallPair, output: Measured) -> _Sides | None:
    """Both calls and their outputs, if these are numbers of one dtype and shape that a distance is known of."""
    one, two = output.pair.reference, output.pair.candidate
    if calls.reference is None or calls.candidate is None or one is None or two is None:
        return None
    owned = any(one is own for own in calls.reference.records) and any(
        two is own for own in calls.candidate.records
    )
    alike = (one.dtype, one.shape) == (two.dtype, two.shape)
    if not owned or not alike or not output.floating or not math.isfinite(output.distance):
        return None
    return (calls.reference, one), (calls.candidate, two)


def _exact(output: Measured) -> Judgement:
    """Both runs moved their own input."""
    return Judgement.follows(differs=output.distance > 0)


def _handed_on(output: Measured) -> Judgement:
    """Both runs computed what they should: all that differs came in."""
    floor = 2.0 * QUIET_ROUNDINGS * output.unit * output.norm
    return Judgement.handed_on(output, floor=floor, inherited=output.distance)


# --- outputs that hardly differ --------------------------------------------------------------------------------------


def _is_quiet(output: Measured, allowed: float, explained: Judgement) -> bool:
    """Whether two outputs in single precision are too near each other for a fault: within `allowed` roundoffs.

    What the inputs do not explain either way is run again all the same.
    """
    pair = output.pair
    norms = [
        side.statistics.norm
        for side in (pair.reference, pair.candidate)
        if side and side.statistics
    ]
    near = len(norms) == 2 and output.distance <= _SHARE * allowed * SINGLE * min(norms)
    return near and not explained.unexplained and not _has_sentinels(pair.present, output.peak)


def _has_sentinels(record: TensorRecord, peak: float) -> bool:
    """Whether some elements are so much larger than the rest that a distance does not tell of the rest."""
    elements = record.load().reshape(-1)
    sample = np.abs(elements[:: max(1, elements.size // _SAMPLE)]).astype(np.float64)
    release_pages(elements)
    sample = sample[(sample > 0) & np.isfinite(sample)]
    return bool(sample.size) and peak > SENTINEL_MAGNITUDE * float(np.median(sample))


# --- the same function of each side's own inputs ---------------------------------------------------------------------


def _is_same_function(sides: _Sides, roles: Sequence[Role]) -> bool:
    """Whether both recordings hold the output as the same function of what entered the two calls."""
    one, two = (_formula(output.content) for _, output in sides)
    if one is None or two is None:
        return False
    return _are_alike(one, two, *(_named(*side, roles) for side in sides))


def _formula(content: Content) -> Formula | None:
    """What a tensor is made of, in the least a tensor that is stored as it is."""
    loader = content.loader
    if not isinstance(loader, StoredTensor) or loader.place is None:
        return None
    return loader.formula() or loader.place


_Key = tuple[object, ...]
_Names = dict[Stored, set[_Key]]


def _named(call: Call, output: TensorRecord, roles: Sequence[Role]) -> _Names:
    """What entered a call, by where it is stored; and what that is a view of."""
    found: _Names = {}
    for record in call.with_role(*roles):
        other_backward = record.role is Role.GRAD_OUTPUT and record.occurrence != output.occurrence
        loader = record.content.loader
        if other_backward or not isinstance(loader, StoredTensor) or loader.place is None:
            continue
        key: _Key = record.role, record.index, record.name
        found.setdefault(loader.place, set()).add(key)
        formula = loader.formula()
        if isinstance(formula, View):
            way = formula.offset, formula.extents, formula.strides
            found.setdefault(formula.base, set()).add((*key, way))
    return found


def _are_alike(one: Formula, two: Formula, left: _Names, right: _Names) -> bool:
    match one, two:
        case Stored(), Stored():
            return not left.get(one, set()).isdisjoint(right.get(two, set()))
        case View(), View():
            way = (one.offset, one.extents, one.strides) == (two.offset, two.extents, two.strides)
            return way and _are_alike(one.base, two.base, left, right)
        case Computed(), Computed():
            return (
                one.name == two.name
                and len(one.operands) == len(two.operands)
                and all(
                    _are_alike(*operands, left, right)
                    for operands in zip(one.operands, two.operands, strict=True)
                )
            )
        case float(), float():
            return one == two
        case _:
            return False
