"""The error model: how far the output of an operator may be off, given how far its inputs are off.

Everything is in Euclidean norms, which statistics give exactly. For an output `y` of inputs `x_i`

    tolerance = INHERITED_MARGIN * sum_i G_i |dx_i|  +  NOISE_MARGIN * (u N + u_acc A)

where the gains `G_i` come from what the operator does (a Lipschitz constant or Cauchy-Schwarz where there is one, a
condition number elsewhere), `u` is the unit roundoff of the coarsest dtype at the site, and `N`, `A` are the sizes of
the numbers that were rounded. With bitwise equal inputs only the second term is left, so the bound is sharp exactly
where two runs on one machine are compared.

Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapters 3 (inner products) and 4 (sums);
the softmax Jacobian's norm: Gao and Pavel, On the properties of the softmax function, 2017 (at most 1/2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lockstep.compare.bounds import (
    DEFAULT_CONDITION,
    LINEAR_REGIME,
    NORMALISATION_ROUNDINGS,
    Bound,
    Rule,
    bilinear_operands,
    centred_norm,
    floats,
    gathered,
    growth,
    is_summed,
    last_extent,
    loss_rows,
    moves_exactly,
    patch_gain,
    reduction_length,
    relative_bound,
    rows_of,
    same_dtype,
    scaled,
    setting,
    spread,
)
from lockstep.compare.gradient_model import gradient_bound
from lockstep.compare.judge import AGREES, Judgement, Operation, is_gradient, relative_judgement
from lockstep.compare.measured import Measured
from lockstep.compare.operators import Family
from lockstep.core.site import Role

NOISE_MARGIN = 4.0
"""JUDGING: a calibrated floor needs 2 (16-bit) to 5 (fp32); the bounds here are looser than a calibration."""

INHERITED_MARGIN = 2.0
"""Both distances may be sketched, each with 4.4 % standard deviation and heavier tails where few elements differ; the
largest ratio seen among some 20 000 moved tensors of sound pairs was 1.33."""

SETTING_MARGIN = 0.05
"""Noise margin where a non-tensor argument differs while all inputs are bitwise equal: then hardly anything but the
argument can move the output."""

SETTING_TRUST = 8.0
"""Divides the inherited part where a non-tensor argument differs: typical amplification then decides, not the worst."""

_SINGLE = 2.0**-24
_FREE_OF_INPUT = frozenset(
    {"normal", "uniform", "exponential", "random", "randlike", "randnlike", "randintlike"}
)


class ErrorModel:
    """Judges by the error model of each operator family; satisfies `lockstep.compare.judge.Judge`."""

    @property
    def name(self) -> str:
        """As it stands under `judged_by`."""
        return "error-model"

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        if output.equal:
            return AGREES
        entering = operation.entering
        if not output.floating:
            return _whole_numbers(entering, output)
        if operation.family is Family.UNINITIALISED:
            return Judgement(math.inf, math.inf, beyond_floor=False, unexplained=False)
        backward = is_gradient(output)
        bound = gradient_bound(operation, output) if backward else _forward_bound(operation, output)
        inherited = INHERITED_MARGIN * bound.inherited
        if operation.setting_differs:
            inherited /= SETTING_TRUST
        if operation.family is not Family.RANDOM and any(
            not item.floating and not item.equal for item in entering
        ):
            inherited = math.inf
        floor = _operator_floor(operation, bound, output)
        return relative_judgement(output, floor=floor, inherited=inherited)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, operators: int
    ) -> Judgement:
        """Judge a tensor against those that it was computed from by `operators` calls without partner."""
        if target.equal:
            return AGREES
        if not target.floating:
            return _whole_numbers(sources, target)
        everything = (*sources, target)
        if operators == 0:
            inherited = sum(item.possible_distance for item in floats(sources))
            size = max(sum(item.norm for item in floats(sources)), target.norm)
            bound = Bound(inherited, size)
        else:
            roundings = DEFAULT_CONDITION * math.sqrt(operators)
            bound = relative_bound(
                sources, target, condition=DEFAULT_CONDITION, roundings=roundings
            )
        if any(not item.floating and not item.equal for item in sources):
            bound = Bound(math.inf, bound.rounding)
        return relative_judgement(
            target,
            floor=_floor(bound, everything, NOISE_MARGIN),
            inherited=INHERITED_MARGIN * bound.inherited,
        )

    def update(self, entering: Sequence[Measured], output: Measured) -> Judgement:
        """Judge a parameter or a state after an optimizer step.

        From equal inputs the result is equal to some roundings, whichever kernel (single, foreach, fused) made it.
        State is linear or quadratic in the gradient. A parameter is not judged where the inputs differ: updates by
        sign, as Adam's first, turn noise on a gradient near zero into a full step.
        """
        if output.equal:
            return AGREES
        if not output.floating:
            return _whole_numbers(entering, output)
        inputs = floats(entering)
        param = max(
            (item.norm for item in inputs if item.pair.present.role is Role.PARAM), default=0.0
        )
        floor = _floor(Bound(0.0, UPDATE_ROUNDINGS * (output.norm + param)), (*inputs, output), 1.0)
        inherited = INHERITED_MARGIN * _update_inherited(inputs, output)
        return relative_judgement(output, floor=floor, inherited=inherited)


UPDATE_ROUNDINGS = 16.0
"""Roundings of one optimizer update: about ten operations per element in `torch.optim`'s Adam."""


def _update_inherited(inputs: Sequence[Measured], output: Measured) -> float:
    if all(item.equal for item in inputs):
        return 0.0
    if output.pair.present.role is Role.PARAM_AFTER:
        return math.inf
    name = output.pair.present.name.rsplit("|", 1)[-1]
    total = 0.0
    for item in inputs:
        squared = item.pair.present.role is Role.PARAM_GRAD and name.endswith(
            ("_sq", "square_avg", "sum")
        )
        total += scaled(2.0 * item.peak if squared else 1.0, item.possible_distance)
    return total


def _whole_numbers(entering: Sequence[Measured], output: Measured) -> Judgement:
    """Integers and booleans do not round: from equal inputs they are equal, else a decision may have flipped."""
    same_inputs = all(item.equal for item in entering)
    tolerance = 0.0 if same_inputs else math.inf
    return Judgement(
        tolerance, 0.0, beyond_floor=output.known, unexplained=output.known and same_inputs
    )


def _floor(bound: Bound, items: Sequence[Measured], margin: float) -> float:
    unit = max((item.unit for item in items if item.floating), default=0.0)
    accumulator = min(unit, _SINGLE) if unit > _SINGLE else unit
    return margin * (unit * bound.rounding + accumulator * bound.accumulation)


def _operator_floor(operation: Operation, bound: Bound, output: Measured) -> float:
    items = (*operation.entering, output)
    same_inputs = all(item.equal for item in operation.entering)
    if operation.setting_differs and same_inputs:
        return SETTING_MARGIN * _SINGLE * (bound.rounding + bound.accumulation)
    floor = _floor(bound, items, NOISE_MARGIN)
    if not same_inputs or output.unit <= _SINGLE or operation.family not in _ROUNDED_ONCE:
        return floor
    if not same_dtype(items) or any(item.unit > output.unit for item in items if item.floating):
        return floor
    return min(floor, _flipped_roundings(bound, output))


def _flipped_roundings(bound: Bound, output: Measured) -> float:
    """Floor of a 16-bit result that was computed in single precision and rounded once.

    An element comes out differently only where the single-precision noise `e` takes it across the middle between two
    16-bit numbers, a share `e / (u |y|)` of all, each then off by one unit in the last place, `2 u` of it at most.
    (JUDGING: healthy kernels misround at most 0.12 % of the elements.)
    """
    noise = NOISE_MARGIN * _SINGLE * (bound.rounding + bound.accumulation)
    whole = output.unit * output.norm
    share = min(1.0, noise / whole) if whole > 0 else 1.0
    return 2.0 * math.sqrt(share) * whole + noise


_ROUNDED_ONCE = frozenset(
    {Family.SMOOTH, Family.KINKED, Family.ADDITIVE, Family.PRODUCT, Family.BILINEAR, Family.MEAN}
)


def _forward_bound(operation: Operation, output: Measured) -> Bound:
    rule = _RULES.get(operation.family, _unknown)
    return rule(operation, output)


def _movement(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    inherited = sum(scaled(spread(output, item), item.possible_distance) for item in inputs)
    return Bound(inherited, 0.0 if moves_exactly(inputs, output) else output.norm)


def _gather(operation: Operation, output: Measured) -> Bound:
    gain = math.sqrt(rows_of(output))
    inputs = floats(operation.inputs)
    inherited = sum(scaled(gain, item.possible_distance) for item in inputs)
    return Bound(inherited, 0.0 if moves_exactly(inputs, output) else output.norm)


def _smooth(operation: Operation, output: Measured) -> Bound:
    gain = 1.8 if operation.name in ("elu", "selu", "celu") else 1.2
    inputs = floats(operation.inputs)
    inherited = sum(scaled(gain * spread(output, item), item.possible_distance) for item in inputs)
    return Bound(inherited, output.norm + sum(item.norm for item in inputs))


def _kinked(operation: Operation, output: Measured) -> Bound:
    gain = 3.0 if "pool" in operation.name else 1.0
    inputs = floats(operation.inputs)
    inherited = sum(scaled(gain * spread(output, item), item.possible_distance) for item in inputs)
    return Bound(inherited, output.norm)


def _additive(operation: Operation, output: Measured) -> Bound:
    alpha = setting(operation, ("alpha",))
    gain = max(1.0, abs(alpha)) if isinstance(alpha, (int, float)) else 1.0
    inputs = floats(operation.inputs)
    inherited = sum(scaled(gain * spread(output, item), item.possible_distance) for item in inputs)
    terms = (
        gain * sum(item.norm for item in inputs) if gain > 1.0 or operation.name == "lerp" else 0.0
    )
    return Bound(inherited, output.norm + terms)


def _product(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if len(inputs) != 2:
        return _by_number(inputs, output)
    left, right = inputs
    inherited = scaled(right.peak * spread(output, left), left.possible_distance) + scaled(
        left.peak * spread(output, right), right.possible_distance
    )
    return Bound(inherited, output.norm)


def _by_number(inputs: list[Measured], output: Measured) -> Bound:
    """Times or divided by a number: relative differences stay as they are."""
    inherited = sum(scaled(1.1 * output.norm, item.relative) for item in inputs)
    return Bound(inherited, output.norm)


def _bilinear(operation: Operation, output: Measured) -> Bound:
    operands, addends = bilinear_operands(operation)
    if len(operands) != 2:
        return _unknown(operation, output)
    left, right = operands
    patch = patch_gain(operation)
    product = patch * left.norm * right.norm
    length = reduction_length(left, right, output)
    inherited = patch * (
        scaled(right.norm, left.possible_distance) + scaled(left.norm, right.possible_distance)
    ) + sum(scaled(spread(output, item), item.possible_distance) for item in addends)
    added = sum(spread(output, item) * item.norm for item in addends)
    rounding = output.norm + 2.0 * product / math.sqrt(length) + added
    return Bound(inherited, rounding, product * growth(length))


def _sum(operation: Operation, output: Measured) -> Bound:
    bound = Bound(0.0, output.norm)
    for item in floats(operation.inputs):
        length = gathered(item, output)
        if operation.name == "cumsum":
            length = max((*item.shape, 1)) ** 2
        elif operation.name in ("indexadd", "scatteradd", "scatterreduce"):
            length = rows_of(item)
        size = math.sqrt(length)
        bound = Bound(
            bound.inherited + scaled(size, item.possible_distance),
            bound.rounding,
            bound.accumulation + size * item.norm * growth(length),
        )
    return bound


def _mean(operation: Operation, output: Measured) -> Bound:
    bound = Bound(0.0, output.norm)
    picked = [item.numel for item in operation.inputs if not item.floating]
    for item in floats(operation.inputs):
        length = gathered(item, output)
        if operation.name == "nllloss" and picked:
            length = max(1.0, min(length, picked[0]))
        gain = spread(output, item) * (
            math.sqrt(length) if is_summed(operation) else 1.0 / math.sqrt(length)
        )
        bound = Bound(
            bound.inherited + scaled(gain, item.possible_distance),
            bound.rounding,
            bound.accumulation + gain * item.norm * growth(length),
        )
    return bound


def _softmax(operation: Operation, output: Measured) -> Bound:
    logarithm = operation.name == "logsoftmax"
    gain = 1.0 + math.sqrt(last_extent(output)) if logarithm else 1.0
    inherited = sum(scaled(gain, item.possible_distance) for item in floats(operation.inputs))
    size = output.norm + (math.sqrt(output.numel) if logarithm else 0.0)
    return Bound(inherited, 8.0 * size)


def _cross_entropy(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    rows = loss_rows(operation)
    if output.numel > 1:
        gain = 4.0
    else:
        gain = 4.0 * math.sqrt(rows) if is_summed(operation) else 4.0 / math.sqrt(rows)
    inherited = sum(scaled(gain, item.possible_distance) for item in inputs)
    peak = max((item.peak for item in inputs[:1]), default=0.0)
    return Bound(inherited, 8.0 * (output.norm + peak), output.norm * growth(rows))


def _squared_error(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    count = max((item.numel for item in inputs), default=1)
    inherited = 0.0
    for item in inputs:
        far = item.possible_distance
        if output.numel > 1 or is_summed(operation):
            inherited += scaled(2.0 * math.sqrt(output.norm) + far, far)
        else:
            inherited += scaled(2.0 * math.sqrt(output.norm / count) + far / count, far)
    return Bound(inherited, 8.0 * output.norm, output.norm * growth(count))


def _normalisation(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if not inputs:
        return Bound(0.0, NORMALISATION_ROUNDINGS * output.norm)
    condition = DEFAULT_CONDITION * max(
        1.0, inputs[0].norm / max(centred_norm(inputs[0]), 1e-300) / 8
    )
    return relative_bound(inputs, output, condition=condition, roundings=NORMALISATION_ROUNDINGS)


def _attention(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if len(inputs) < 3:
        return _unknown(operation, output)
    query, key, value = inputs[:3]
    size = max(output.norm, value.norm * spread(output, value))
    far = sum(item.relative for item in inputs)
    inherited = math.inf if far > LINEAR_REGIME else scaled(DEFAULT_CONDITION * size, far)
    return Bound(inherited, 8.0 * size)


def _dropout(operation: Operation, output: Measured) -> Bound:
    share = setting(operation, ("p", "args.1"))
    dropped = float(share) if isinstance(share, (int, float)) and 0 <= share < 1 else 0.5
    inputs = floats(operation.inputs)
    inherited = sum(scaled(1.0 / (1.0 - dropped), item.possible_distance) for item in inputs)
    return Bound(inherited, output.norm)


def _random(operation: Operation, output: Measured) -> Bound:
    explained = operation.name not in _FREE_OF_INPUT and any(
        not item.equal for item in operation.inputs
    )
    return Bound(math.inf if explained else 0.0, output.norm)


def _unknown(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    special = _SPECIAL.get(operation.name)
    if special is not None and inputs:
        return special(operation, output)
    return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=DEFAULT_CONDITION)


def _exponential(operation: Operation, output: Measured) -> Bound:
    inherited = scaled(output.peak, floats(operation.inputs)[0].possible_distance)
    return Bound(inherited, 4.0 * output.norm)


def _quotient(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if len(inputs) == 1:
        return _by_number(inputs, output)
    above, below = inputs[0], inputs[-1]
    least = smallest_magnitude(below)
    if least == 0.0:
        return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=2.0)
    inherited = scaled(spread(output, above) / least, above.possible_distance) + scaled(
        spread(output, below) * output.peak / least, below.possible_distance
    )
    return Bound(inherited, 2.0 * output.norm)


def smallest_magnitude(item: Measured) -> float:
    """Smallest magnitude of a tensor whose elements all have one sign, else 0."""
    least = math.inf
    for record in (item.pair.reference, item.pair.candidate):
        statistics = record.statistics if record is not None else None
        if statistics is None:
            return 0.0
        low, high = statistics.minimum, statistics.maximum
        least = min(least, max(low, -high))
    return max(0.0, least) if math.isfinite(least) else 0.0


_SPECIAL: dict[str, Rule] = {
    "exp": _exponential,
    "div": _quotient,
    "divide": _quotient,
    "truedivide": _quotient,
}

_RULES: dict[Family, Rule] = {
    Family.MOVEMENT: _movement,
    Family.GATHER: _gather,
    Family.SMOOTH: _smooth,
    Family.KINKED: _kinked,
    Family.ADDITIVE: _additive,
    Family.PRODUCT: _product,
    Family.BILINEAR: _bilinear,
    Family.SUM: _sum,
    Family.MEAN: _mean,
    Family.SOFTMAX: _softmax,
    Family.CROSS_ENTROPY: _cross_entropy,
    Family.SQUARED_ERROR: _squared_error,
    Family.NORMALISATION: _normalisation,
    Family.ATTENTION: _attention,
    Family.DROPOUT: _dropout,
    Family.RANDOM: _random,
}
