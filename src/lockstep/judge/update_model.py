"""The error model of optimizer updates: how far a parameter or a state may be off after one.

From equal inputs the result is equal to some roundings, whichever kernel (single, foreach, fused) made it. Averages of
gradients are linear or quadratic in the gradient. A parameter is judged by how far it was moved: `u = after - before`
on either side, whose size sketches tell without a tensor, as they are linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.core.finding import CallPair
from lockstep.core.optimizer_classes import LINEAR_STATES, QUADRATIC_STATES, optimizer_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.bounds import scaled
from lockstep.judge.tolerances import DEFAULT_CONDITION, LINEAR_REGIME, OTHER_DIRECTION
from lockstep.measure.measured_pair import Measured


def inherited_bound(
    inputs: Sequence[Measured], output: Measured, calls: CallPair | None, *, margin: float
) -> float:
    """How far an update's result may be off because its inputs are, as Euclidean distance.

    `margin` is that of measured distances.
    """
    if all(item.equal for item in inputs):
        return 0.0
    name = state_name(output.pair.present)
    quadratic = name in QUADRATIC_STATES
    if not quadratic and (name not in LINEAR_STATES or _averages_updates(name, calls)):
        before = sum(item.possible_distance for item in inputs if _is_before(item, output))
        return margin * before + _moved_apart(inputs, output, calls)
    average = _average(inputs, name, calls)
    if average is not None:
        return margin * average.of(*(item.possible_distance for item in average.parts))
    total = 0.0
    for item in inputs:
        squared = quadratic and item.pair.present.role is Role.PARAM_GRAD
        total += scaled(2.0 * item.peak if squared else 1.0, item.possible_distance)
    return margin * total


def rounded_size(inputs: Sequence[Measured], output: Measured, calls: CallPair | None) -> float:
    """Size of the numbers that an update rounds, as a Euclidean norm in its result's unit."""
    average = _average(inputs, state_name(output.pair.present), calls)
    if average is not None:
        return output.norm + average.of(*(item.norm for item in average.parts))
    params = (item.norm for item in inputs if item.pair.present.role is Role.PARAM)
    return output.norm + max(params, default=0.0)


def correction_size(output: Measured, calls: CallPair | None) -> float:
    """Size whose rounding two libraries' corrections of one average of squares may be apart, in the result's unit.

    Adam divides by `sqrt(1 - beta2 ** t)`: in double precision in one library, in single precision in another, where
    1 less a rounded 0.999 is off by `beta2 / (1 - beta2)` roundings, and its root by half as many.
    """
    if calls is None or calls.reference is None or calls.candidate is None:
        return 0.0
    if len({one.site.op.partition(".")[0] for one in (calls.reference, calls.candidate)}) == 1:
        return 0.0
    given = (calls.reference.arguments.get("betas"), calls.candidate.arguments.get("betas"))
    betas = [one[1] for one in given if isinstance(one, (list, tuple)) and len(one) > 1]
    beta = max((one for one in betas if isinstance(one, float) and 0 < one < 1), default=0.0)
    return 0.5 * beta / (1.0 - beta) * max(_sizes(output, calls) or (0.0,))


@dataclass(frozen=True, slots=True)
class _Average:
    """A state that an optimizer of torch makes of its earlier self and the gradient, or of the gradient's squares.

    parts: What it is made from: earlier states, the gradient, the parameter.
    gains: How far one of them moves it, each per unit of its own distance.
    """

    parts: tuple[Measured, ...]
    gains: tuple[float, ...]

    def of(self, *sizes: float) -> float:
        """Return how far it moves where its parts move so far."""
        return sum(map(scaled, self.gains, sizes))


def _average(inputs: Sequence[Measured], name: str, calls: CallPair | None) -> _Average | None:
    """The average that a state is; None where the optimizer is not in the catalogue."""
    if calls is None:
        return None
    known, arguments = optimizer_of(calls.present.site.op), calls.present.arguments
    if name not in (*known.averages, *known.squares) or _averages_updates(name, calls):
        return None
    is_square, betas = name in known.squares, arguments.get("betas")
    is_moment = name.startswith(("exp_avg", "max_exp_avg"))
    beta = betas[is_square] if is_moment and isinstance(betas, (list, tuple)) else None
    kept, share = (beta, 1.0 - beta) if isinstance(beta, float) else (1.0, 1.0)
    weights = {Role.PARAM_GRAD: 1.0, Role.PARAM: _decay_in_gradient(calls.present)}
    peak = sum(weights.get(item.pair.present.role, 0.0) * item.peak for item in inputs)
    gain = share * (2.0 * peak if is_square else 1.0)
    alike = known.squares if is_square else known.averages
    gains = [
        kept * (state_name(record) in alike)
        if record.role is Role.STATE
        else gain * weights.get(record.role, 0.0)
        for record in (item.pair.present for item in inputs)
    ]
    return _Average(tuple(inputs), tuple(gains))


def _decay_in_gradient(call: Call) -> float:
    """The share of a parameter that an update adds to its gradient; a decay beside the gradient is none."""
    decay = call.arguments.get("weight_decay", 0.0)
    if call.site.op == _DECAYS_ALONE or call.arguments.get("decoupled_weight_decay"):
        return 0.0
    return abs(decay) if isinstance(decay, (int, float)) else 1.0


_DECAYS_ALONE = "torch.optim.AdamW"
"""Builds of PyTorch that have no option for it make this a class of its own."""

Update = tuple[TensorRecord | None, TensorRecord | None]
"""A parameter or a state before its update and after."""


def update_size(before: TensorRecord | None, after: TensorRecord | None) -> float:
    """Euclidean size of an update: from sketches, which are linear, else from tensors, else 0."""
    moved = update_sketch(before, after)
    return float(np.linalg.norm(moved)) if moved is not None else _exact_size(before, after)


def update_sizes(reference: Update, candidate: Update) -> tuple[float, float]:
    """Return the sizes of the updates of two runs, for a comparison, as `update_size` has them.

    Both are from the same source: two sketches of one tensor are off alike, but not a sketch and the tensor itself,
    and a recording of an earlier build may have no sketch that can be used.
    """
    left, right = update_sketch(*reference), update_sketch(*candidate)
    if left is None or right is None:
        return _exact_size(*reference), _exact_size(*candidate)
    return float(np.linalg.norm(left)), float(np.linalg.norm(right))


def _exact_size(before: TensorRecord | None, after: TensorRecord | None) -> float:
    """From whole tensors, 0 where one was not saved."""
    if before is None or after is None or before.shape != after.shape:
        return 0.0
    left, right = before.content, after.content
    if left.loader is None or right.loader is None:
        return 0.0
    return float(np.linalg.norm(right.load().astype(np.float64) - left.load()))


def update_sketch(
    before: TensorRecord | None, after: TensorRecord | None
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    """Sketch of an update, None where a side has none or the two are no tensors of one shape."""
    if before is None or after is None or before.shape != after.shape:
        return None
    left, right = before.content.sketch, after.content.sketch
    return None if left is None or right is None else right - left


def state_name(record: TensorRecord) -> str:
    """Return the bare name of an optimizer state; "" for a name of something else."""
    return record.name.rpartition("|")[2] if "|" in record.name else ""


def _is_before(item: Measured, output: Measured) -> bool:
    """Whether an input is what the output was before the update."""
    record, after = item.pair.present, output.pair.present
    wanted = Role.PARAM if after.role is Role.PARAM_AFTER else Role.STATE
    return record.role is wanted and record.name == after.name


def _moved_apart(inputs: Sequence[Measured], output: Measured, calls: CallPair | None) -> float:
    """How far two updates may be apart because what enters them is."""
    noise = max(
        (item.relative for item in inputs if item.pair.present.role is not Role.PARAM), default=0.0
    )
    if not math.isfinite(noise):
        return math.inf
    sizes = _sizes(output, calls)
    if noise > LINEAR_REGIME:  # a gradient of rounding alone moves its parameter anywhere
        return sum(sizes) if sizes is not None else 2.0 * output.norm
    if sizes is None:
        return min(1.0, math.sqrt(noise)) * output.norm
    apart = OTHER_DIRECTION * max(sizes)
    if output.distance > apart:  # nothing is decided before
        apart = OTHER_DIRECTION * math.hypot(*sizes)
    if calls is not None and optimizer_of(calls.present.site.op).is_linear:
        apart = min(apart, DEFAULT_CONDITION * noise * max(sizes))
    return apart


def _sizes(output: Measured, calls: CallPair | None) -> tuple[float, float] | None:
    """How far either side was moved; None where that is not known."""
    if calls is None or calls.reference is None or calls.candidate is None:
        return None
    sizes = (
        _size(output, calls.reference, output.pair.reference),
        _size(output, calls.candidate, output.pair.candidate),
    )
    return sizes if max(sizes) > 0 else None


def _size(output: Measured, call: Call, after: TensorRecord | None) -> float:
    role = Role.PARAM if output.pair.present.role is Role.PARAM_AFTER else Role.STATE
    matching = (one for one in call.with_role(role) if after is not None and one.name == after.name)
    before = next(matching, None)
    if before is None and role is Role.STATE and after is not None and after.statistics is not None:
        return after.statistics.norm  # it was made just now, and began at zero
    return update_size(before, after)


def _averages_updates(name: str, calls: CallPair | None) -> bool:
    """Whether a momentum is one of normalised updates, as RMSprop's, not of gradients."""
    return (
        name == "momentum_buffer"
        and calls is not None
        and any(state_name(record) in QUADRATIC_STATES for record in calls.present.records)
    )
