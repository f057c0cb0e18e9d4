"""The error model of forward passes; see `lockstep.judge.error_model` for its form."""

from __future__ import annotations

import math

from lockstep.core.operators import QUOTIENT_FACTOR, Family, Trait
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.bounds import (
    Bound,
    Rule,
    addend_gain,
    bilinear_operands,
    broadcast,
    centred_norm,
    dropout_gain,
    floats,
    gathered,
    growth,
    in_linear_regime,
    is_summed,
    last_extent,
    loss_rows,
    moves_exactly,
    patch_gain,
    product_bound,
    relative_bound,
    rows_of,
    scaled,
    spread,
    window_gain,
)
from lockstep.judge.protocol import Operation
from lockstep.judge.tolerances import DEFAULT_CONDITION, NORMALISATION_ROUNDINGS
from lockstep.measure.measured_pair import Measured


def forward_bound(operation: Operation, output: Measured) -> Bound:
    """Return the bound on a call's results, given its inputs."""
    rule = _RULES.get(operation.family, _unknown)
    return rule(operation, output)


def _movement(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    return Bound(broadcast(inputs, output), 0.0 if moves_exactly(inputs, output) else output.norm)


def _gather(operation: Operation, output: Measured) -> Bound:
    gain = math.sqrt(rows_of(output))
    inputs = floats(operation.inputs)
    inherited = sum(scaled(gain, item.possible_distance) for item in inputs)
    return Bound(inherited, 0.0 if moves_exactly(inputs, output) else output.norm)


def _smooth(operation: Operation, output: Measured) -> Bound:
    gain = 1.8 if Trait.STEEP in operation.known.traits else 1.2
    inputs = floats(operation.inputs)
    return Bound(broadcast(inputs, output, gain), output.norm + sum(item.norm for item in inputs))


def _kinked(operation: Operation, output: Measured) -> Bound:
    gain = window_gain(operation)
    return Bound(broadcast(floats(operation.inputs), output, gain), output.norm)


def _additive(operation: Operation, output: Measured) -> Bound:
    gain = addend_gain(operation)
    inputs = floats(operation.inputs)
    weighted = gain > 1.0 or operation.name == "lerp"
    terms = gain * sum(item.norm for item in inputs) if weighted else 0.0
    return Bound(broadcast(inputs, output, gain), output.norm + terms)


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
    bound = product_bound(left, right, output, patch_gain(operation))
    added = sum(spread(output, item) * item.norm for item in addends)
    inherited = bound.inherited + broadcast(addends, output)
    return Bound(inherited, bound.rounding + added, bound.accumulation)


def _sum(operation: Operation, output: Measured) -> Bound:
    bound = Bound(0.0, output.norm)
    for item in floats(operation.inputs):
        length = gathered(item, output)
        if operation.name == "cumsum":
            length = max((*item.shape, 1)) ** 2
        elif Trait.ADDS_AT_INDEX in operation.known.traits:
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


def _slope(operation: Operation) -> float | None:
    """Norm of a loss's own gradient by its scores, the larger of both runs'; None where one did not record it.

    To second order a loss changes by `|g| |dx| + |dx|**2 max|H| / 2`, and the Hessian of a row's cross-entropy, that of
    log-sum-exp, is at most 1/2 (Gao and Pavel, On the properties of the softmax function, 2017).
    """
    calls = operation.calls
    if calls is None or calls.reference is None or calls.candidate is None:
        return None
    slopes = [_slope_of(call) for call in (calls.reference, calls.candidate)]
    known = [slope for slope in slopes if slope is not None]
    return max(known) if len(known) == len(slopes) else None


def _slope_of(call: Call) -> float | None:
    sent = [one for one in call.with_role(Role.GRAD_INPUT) if not one.index and not one.occurrence]
    arrived = [one for one in call.with_role(Role.GRAD_OUTPUT) if not one.occurrence]
    if len(sent) != 1 or len(arrived) != 1:
        return None
    below, above = sent[0].statistics, arrived[0].statistics
    if below is None or above is None or not (0 < above.norm < math.inf and below.norm < math.inf):
        return None
    return below.norm / above.norm if below.norm > 0 else None


def _cross_entropy(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    rows = loss_rows(operation)
    if output.numel > 1:
        gain = 4.0
    else:
        gain = 4.0 * math.sqrt(rows) if is_summed(operation) else 4.0 / math.sqrt(rows)
    slope = _slope(operation) if output.numel == 1 and inputs else None
    if slope is None:
        inherited = sum(scaled(gain, item.possible_distance) for item in inputs)
    else:
        far, curvature = inputs[0].possible_distance, 0.25 if is_summed(operation) else 0.25 / rows
        inherited = scaled(slope, far) + scaled(curvature * far, far)
        inherited += sum(scaled(gain, item.possible_distance) for item in inputs[1:])
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
    _query, _key, value = inputs[:3]
    size = max(output.norm, value.norm * spread(output, value))
    far = sum(item.relative for item in inputs)
    return Bound(in_linear_regime(DEFAULT_CONDITION * size, far), 8.0 * size)


def _dropout(operation: Operation, output: Measured) -> Bound:
    gain, inputs = dropout_gain(operation), floats(operation.inputs)
    inherited = sum(scaled(gain, item.possible_distance) for item in inputs)
    return Bound(inherited, output.norm)


def _random(operation: Operation, output: Measured) -> Bound:
    free = Trait.IGNORES_INPUT in operation.known.traits
    explained = not free and any(not item.equal for item in operation.inputs)
    return Bound(math.inf if explained else 0.0, output.norm)


def _unknown(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    few_roundings = Trait.FEW_ROUNDINGS in operation.known.traits
    special = _SPECIAL.get(operation.name, _few_roundings if few_roundings else None)
    if special is not None and inputs:
        return special(operation, output)
    if operation.name.endswith("backward") and inputs:
        return _backward_kernel(operation, output)
    return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=DEFAULT_CONDITION)


def _backward_kernel(operation: Operation, output: Measured) -> Bound:
    """An aten kernel such as `native_layer_norm_backward`: sums over rows cancel."""
    gradient = floats(operation.inputs)[0]
    relative = relative_bound(
        operation.inputs, output, condition=DEFAULT_CONDITION, roundings=DEFAULT_CONDITION
    )
    added = gathered(gradient, output)
    if added <= 1.0:
        return relative
    gain = 4.0 * math.sqrt(added)
    return Bound(
        relative.inherited + scaled(gain, gradient.possible_distance),
        relative.rounding,
        gain * gradient.norm * growth(added),
    )


def _convolution_backward(operation: Operation, output: Measured) -> Bound:
    """`convolution_backward(gradient, input, weight)`: the shape tells which result it is."""
    inputs = floats(operation.inputs)
    if len(inputs) < 3:
        return _backward_kernel(operation, output)
    gradient, image, weight = inputs[:3]
    if output.shape not in (image.shape, weight.shape):
        return _backward_kernel(operation, output)
    other = weight if output.shape == image.shape else image
    patch = math.sqrt(max(1, math.prod(weight.shape[2:])))
    return product_bound(gradient, other, output, patch)


def _exponential(operation: Operation, output: Measured) -> Bound:
    inherited = scaled(output.peak, floats(operation.inputs)[0].possible_distance)
    return Bound(inherited, 4.0 * output.norm)


def _few_roundings(operation: Operation, output: Measured) -> Bound:
    """A function of single elements that a library rounds to within a unit in the last place or two."""
    inputs = floats(operation.inputs)
    return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=4.0)


def _logarithm(operation: Operation, output: Measured) -> Bound:
    """Its slope is 1/x: near 1, where results are small, a difference stays as large as it comes in."""
    bound = _few_roundings(operation, output)
    first = floats(operation.inputs)[0]
    least = _smallest_magnitude(first)
    if least == 0.0:
        return bound
    inherited = max(bound.inherited, scaled(1.0 / least, first.possible_distance))
    return Bound(inherited, bound.rounding)


def _quotient(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if len(inputs) == 1:
        return _by_number(inputs, output)
    above, below = inputs[0], inputs[-1]
    least = _smallest_magnitude(below)
    if least == 0.0:
        return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=2.0)
    inherited = scaled(spread(output, above) / least, above.possible_distance) + scaled(
        spread(output, below) * output.peak / least, below.possible_distance
    )
    return Bound(inherited, 2.0 * output.norm)


def _added_quotient(operation: Operation, output: Measured) -> Bound:
    """`start + value * above / below`, as Adam updates a parameter; of lists of tensors, those at the output's place.

    Where both are rounding alone, as for a parameter whose gradient is zero, the quotient is as large as any other.
    """
    inputs = floats(operation.inputs)
    count, rest = divmod(len(inputs), 3)
    place = output.pair.present.index if count > 1 else 0
    if rest or not place < count:
        return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=4.0)
    start, above, below = inputs[place], inputs[count + place], inputs[2 * count + place]
    factor, least = QUOTIENT_FACTOR.of(operation.arguments), _smallest_magnitude(below)
    size = abs(factor) if isinstance(factor, (int, float)) else 1.0
    if least == 0.0:
        return relative_bound(inputs, output, condition=DEFAULT_CONDITION, roundings=4.0)
    inherited = scaled(size / least, above.possible_distance) + scaled(
        size * (above.peak / least) / least, below.possible_distance
    )
    return Bound(start.possible_distance + inherited, 2.0 * (output.norm + start.norm))


def _smallest_magnitude(item: Measured) -> float:
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
    "log": _logarithm,
    "convolutionbackward": _convolution_backward,
    "div": _quotient,
    "divide": _quotient,
    "truedivide": _quotient,
    "addcdiv": _added_quotient,
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
