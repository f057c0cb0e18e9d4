"""The verdict on an update by a different framework's optimizer: the known one is run on what entered the other.

One update rule gives one result, whoever runs it. The class of `torch.optim` that made one run's update is run in
double precision on the parameter, the gradient and the states that the other run's optimizer got. Only where what it
keeps afterwards is what the other one keeps, number by number, do the two mean the same by a state; then the parameter
has to be the same too. Two libraries may put epsilon at two places, and compute a correction in two precisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import CallPair
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement
from lockstep.judge.tolerances import OTHER_EPSILON, SAME_STATE
from lockstep.judge.update_model import correction_size
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.error_bounds.distance import error_of, size_of
from lockstep.replay.error_bounds.margin import Margin
from lockstep.replay.verdicts.which_run import RUNS, fault

_MOST_STATES = 3
"""States of a parameter whose pairing is tried."""


def updated_by_other(entering: Sequence[Measured], output: Measured, calls: CallPair) -> Judgement:
    """The verdict on a parameter that optimizers of two frameworks updated: a fault.

    Raises CannotReplay if nothing is wrong, or the two updates cannot be compared so.
    """
    sides = calls.reference, calls.candidate
    records = output.pair.reference, output.pair.candidate
    known = _known_side(sides)
    rerun, other = UpdateRerun(_there(sides[known])), 1 - known
    own, after = records[known], records[other]
    if own is None or after is None or not rerun.local(own).sound:
        raise CannotReplay("the update is not what its class computes")
    tried = _given(rerun, entering, known, _there(sides[other]))
    for given in tried:
        made = rerun.made_of(given)
        same = _same_elements(made, _there(sides[other]))
        if same is not None:
            break
    else:
        raise CannotReplay("the two optimizers mean something else by their states")
    unit, truth = unit_roundoff(after.dtype), made["param"]
    error = error_of(widened(load(after)), truth, same)
    moved = error_of(truth, widened(given["param"]), same).norm
    allowed = Margin.of_update(unit, size_of(truth).norm).tolerance(error, 0.0)
    allowed += unit * correction_size(output, calls) + 2 * SAME_STATE * moved
    allowed += _by_epsilon(_there(sides[known]), given, made, same)
    if not error.norm > allowed:
        raise CannotReplay("the other update is what this class computes")
    share = error.norm / moved if moved > 0 else float("inf")
    words = (
        f"of the {RUNS[other]}'s own parameter, gradient and state the {RUNS[known]}'s {rerun.kind.__name__} makes"
        f" something else: the update is off by {share:.2g} of its size"
    )
    return fault(output, error.norm / allowed, words)


def _known_side(sides: Sequence[Call | None]) -> int:
    """The one side whose class is one of `torch.optim`."""
    known = []
    for side, call in enumerate(sides):
        try:
            UpdateRerun(_there(call))
        except CannotReplay:
            continue
        known.append(side)
    if len(known) != 1:
        raise CannotReplay("both or neither of the two classes can be run")
    return known[0]


def _there(call: Call | None) -> Call:
    if call is None:
        raise CannotReplay("one side has no such update")
    return call


def _given(
    rerun: UpdateRerun, entering: Sequence[Measured], known: int, other: Call
) -> Iterator[dict[str, torch.Tensor]]:
    """What entered the other run's update, by the names of the known class: with each way in which states may pair."""
    given = {}
    for item in entering:
        sides = item.pair.reference, item.pair.candidate
        ours, theirs = sides[known], sides[1 - known]
        if ours is None or theirs is None or ours.role is Role.STATE:
            continue
        if item.pair.layout is not None or ours.shape != theirs.shape:
            raise CannotReplay("it lies in another layout")
        given["param" if ours.role is Role.PARAM else "grad"] = load(theirs)
    own = {key: tensor for key, (tensor, _) in rerun.entering().items() if key not in given}
    if "param" in own or "grad" in own:
        raise CannotReplay("not all that entered the updates is recorded")
    shape = given["param"].shape
    given |= {key: tensor for key, tensor in own.items() if tensor.shape != shape}  # a count
    keys = [key for key in own if key not in given]
    kept = [load(one) for one in other.with_role(Role.STATE) if one.shape == tuple(shape)]
    if max(len(keys), len(kept)) > _MOST_STATES:
        raise CannotReplay("the optimizers keep many states")
    for order in permutations(kept, len(keys)):
        yield {**given, **dict(zip(keys, order, strict=True))}


def _same_elements(made: dict[str, torch.Tensor], other: Call) -> torch.Tensor | None:
    """Elements of which all that the class keeps afterwards is kept by the other optimizer too; None without any.

    A gradient that is rounding alone may be another number in the function that was compiled.
    """
    kept = [widened(load(one)) for one in other.with_role(Role.STATE_AFTER)]
    same = torch.ones_like(made["param"], dtype=torch.bool)
    for key, one in made.items():
        state = widened(one)
        if key == "param" or state.shape != same.shape:
            continue
        near = SAME_STATE * size_of(state).norm
        alike = [it for it in kept if it.shape == same.shape and error_of(it, state).norm <= near]
        if not alike:
            return None
        same &= (alike[0] - state).abs() <= SAME_STATE * state.abs()
    return same if bool(same.any()) else None


def _by_epsilon(
    call: Call,
    given: dict[str, torch.Tensor],
    made: dict[str, torch.Tensor],
    same: torch.Tensor,
) -> float:
    """How far a parameter moves where epsilon stands at another place of the formula."""
    epsilon = call.arguments.get("eps")
    if not isinstance(epsilon, float):
        return 0.0
    arguments = {**call.arguments, "eps": OTHER_EPSILON * epsilon}
    moved = UpdateRerun(replace(call, arguments=arguments)).made_of(given)
    return error_of(moved["param"], made["param"], same).norm
