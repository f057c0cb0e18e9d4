"""The error model of backward passes; see `lockstep.judge.error_model` for its form.

A backward is linear in the gradient `g` that enters it, so `|J^T| |dg|` is exact in form; the
forward tensors enter through `|dJ| |g|`. Sums over rows (weight and bias gradients) cancel: their
bound is Cauchy-Schwarz, `|g| |x|`, not their own norm, as a gradient that is zero in exact
arithmetic (the key bias of attention) consists of rounding alone.
"""

from __future__ import annotations

import math
from dataclasses import astuple

from lockstep.core.operators import Family
from lockstep.core.records import OF_LAST_FUNCTION
from lockstep.core.site import Role
from lockstep.judge.bounds import (
    Bound,
    Rule,
    addend_gain,
    bilinear_operands,
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
    rows_of,
    scaled,
    window_gain,
)
from lockstep.judge.protocol import Operation
from lockstep.judge.tolerances import DEFAULT_CONDITION, NORMALISATION_ROUNDINGS
from lockstep.measure.measured_pair import Measured


def gradient_bound(operation: Operation, output: Measured) -> Bound:
    """Bound of a gradient that leaves a call, towards an input or a parameter."""
    if not operation.gradients:
        return Bound(math.inf, output.norm)
    rule = _RULES.get(operation.family, _unknown)
    return rule(operation, output)


def _size(operation: Operation) -> float:
    return math.sqrt(sum(item.norm * item.norm for item in operation.gradients))


def _far(operation: Operation) -> float:
    return sum(item.possible_distance for item in operation.gradients)


def _peak(operation: Operation) -> float:
    return max(item.peak for item in operation.gradients)


def _count(operation: Operation) -> int:
    return sum(item.numel for item in operation.gradients)


def _added(operation: Operation, output: Measured) -> float:
    """How many gradient elements are added up into one of the output's."""
    return max(1.0, _count(operation) / max(1, output.numel))


def _input_of(operation: Operation, output: Measured) -> Measured | None:
    """The input whose gradient this is: by name (parameters), else by position."""
    record = output.pair.present
    named = (item for item in operation.inputs if item.pair.present.name == record.name)
    placed = (item for item in operation.inputs if item.pair.present.index == record.index)
    return next(named, None) or next(placed, None)


def _movement(operation: Operation, output: Measured) -> Bound:
    if any(not item.floating for item in operation.inputs) and operation.name in (
        "getitem",
        "setitem",
    ):
        return _gather(operation, output)
    added = _added(operation, output)
    inherited = scaled(math.sqrt(added), _far(operation))
    if added > 1.0:
        size = _size(operation) * math.sqrt(added)
        return Bound(inherited, output.norm, size * growth(added))
    exact = len(operation.gradients) == 1 and moves_exactly(operation.gradients, output)
    return Bound(inherited, 0.0 if exact else output.norm)


_WRITE_ROWS = frozenset({"indexput", "indexcopy", "scatter", "setitem"})
"""Operators whose gradient reads, as often as they wrote to it, each row of the gradient that arrives."""


def _gather(operation: Operation, output: Measured) -> Bound:
    moved = (*operation.gradients, output) if operation.name in _WRITE_ROWS else operation.gradients
    rows = max(map(rows_of, moved))
    size = math.sqrt(rows)
    inherited = scaled(size, _far(operation))
    return Bound(inherited, output.norm, size * _size(operation) * growth(rows))


def _smooth(operation: Operation, output: Measured) -> Bound:
    curved = sum(
        scaled(1.2 * _peak(operation), item.possible_distance) for item in floats(operation.inputs)
    )
    return Bound(scaled(1.8, _far(operation)) + curved, 4.0 * _size(operation))


def _kinked(operation: Operation, output: Measured) -> Bound:
    gain = window_gain(operation)
    flips = _flips(operation, output)
    return Bound(scaled(gain, _far(operation)) + flips, gain * _size(operation))


def _flips(operation: Operation, output: Measured) -> float:
    """Elements so near a kink that the input's difference takes them across: each changes by a
    whole gradient.

    Of `n` elements spread like a bell about `4 n d` lie within `d` standard deviations of a kink;
    four more for small n.
    """
    far = sum(item.relative for item in floats(operation.inputs))
    if far == 0.0:
        return 0.0
    count = min(float(_count(operation)), 4.0 + 4.0 * far * _count(operation))
    return min(2.0 * _size(operation), _peak(operation) * math.sqrt(count) * 2.0)


def _additive(operation: Operation, output: Measured) -> Bound:
    return _summed(operation, output, 2.0 * addend_gain(operation))


def _summed(operation: Operation, output: Measured, gain: float) -> Bound:
    added = _added(operation, output)
    size = gain * math.sqrt(added)
    accumulation = size * _size(operation) * growth(added) if added > 1.0 else 0.0
    return Bound(scaled(size, _far(operation)), output.norm, accumulation)


def _product(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if len(inputs) != 2:
        return _proportional(operation, output)
    index = output.pair.present.index
    others = [item for item in inputs if item.pair.present.index != index] or inputs
    other = others[0]
    added = _added(operation, output)
    size = 2.0 * math.sqrt(added)
    inherited = scaled(size * other.peak, _far(operation)) + scaled(
        size * _peak(operation) * math.sqrt(gathered(output, other)), other.possible_distance
    )
    total = min(size * other.peak, 2.0 * other.norm) * _size(operation) if added > 1.0 else 0.0
    return Bound(inherited, 2.0 * output.norm, total * growth(added))


def _proportional(operation: Operation, output: Measured) -> Bound:
    """Times a number: relative differences stay as they are."""
    far = sum(item.relative for item in operation.gradients)
    return Bound(scaled(1.1 * output.norm, far), 2.0 * output.norm)


def _bilinear(operation: Operation, output: Measured) -> Bound:
    if not output.pair.present.name.startswith(OF_LAST_FUNCTION):
        own = _input_of(operation, output)
        return _bilinear_of(operation, output, own)
    # The last function of a graph counts its own arguments: `addmm` has the bias first, and a weight transposed.
    alike = [item for item in floats(operation.inputs) if item.numel == output.numel]
    bounds = [_bilinear_of(operation, output, item) for item in alike]
    return (
        Bound(*(max(sizes) for sizes in zip(*map(astuple, bounds), strict=True)))
        if bounds
        else _unknown(operation, output)
    )


def _bilinear_of(operation: Operation, output: Measured, own: Measured | None) -> Bound:
    """Bound of the gradient of one operand, or of what is added."""
    operands, addends = bilinear_operands(operation)
    if len(operands) != 2 or own is None:
        return _unknown(operation, output)
    if any(own is item for item in addends):
        return _summed(operation, output, 1.0)
    other = operands[1] if own is operands[0] else operands[0]
    factor = patch_gain(operation) * (2.0 if _is_squared(operands) else 1.0)
    return product_bound(operation.gradients[0], other, output, factor)


def _is_squared(operands: list[Measured]) -> bool:
    left, right = (item.pair.present.content for item in operands)
    return left.id == right.id


def _sum(operation: Operation, output: Measured) -> Bound:
    length = float(max((*output.shape, 1))) if operation.name == "cumsum" else 1.0
    size = math.sqrt(gathered(output, operation.gradients[0])) * length
    return Bound(scaled(size, _far(operation)), output.norm, _size(operation) * (length - 1.0))


def _mean(operation: Operation, output: Measured) -> Bound:
    bound = _proportional(operation, output)
    flips = 0.0
    if operation.name == "l1loss":
        far = sum(item.relative for item in floats(operation.inputs))
        share = min(1.0, 4.0 / max(1, output.numel) + 4.0 * far) if far > 0 else 0.0
        flips = 2.0 * output.norm * math.sqrt(share)
    return Bound(2.0 * bound.inherited + flips, bound.rounding)


def _softmax(operation: Operation, output: Measured) -> Bound:
    far, size = _far(operation), _size(operation)
    moved = sum(item.possible_distance for item in floats(operation.outputs))
    moved = moved or sum(item.possible_distance for item in floats(operation.inputs))
    extent = math.sqrt(last_extent(output))
    row = min(size, extent * _peak(operation))
    if operation.name == "logsoftmax":
        return Bound(scaled(1.0 + extent, far) + scaled(extent * row, moved), 16.0 * size)
    probabilities = sum(item.norm for item in floats(operation.outputs)) or math.sqrt(
        rows_of(output)
    )
    inherited = far + scaled(2.0 * _peak(operation) + row, moved)
    return Bound(inherited, 4.0 * _peak(operation) * probabilities + 4.0 * output.norm)


def _cross_entropy(operation: Operation, output: Measured) -> Bound:
    rows = loss_rows(operation)
    share = 1.0 if is_summed(operation) or _count(operation) > 1 else 1.0 / rows
    moved = sum(item.possible_distance for item in floats(operation.inputs))
    far = sum(item.relative for item in operation.gradients)
    # Ignored targets make the mean's weights larger than 1 / rows: hence a factor of 4.
    scale = 4.0 * share * _size(operation)
    inherited = scaled(1.1 * output.norm, far) + scaled(scale, moved)
    return Bound(inherited, 8.0 * max(output.norm, scale * math.sqrt(rows)))


def _squared_error(operation: Operation, output: Measured) -> Bound:
    share = 1.0 if is_summed(operation) or _count(operation) > 1 else 1.0 / max(1, output.numel)
    moved = sum(item.possible_distance for item in floats(operation.inputs))
    far = sum(item.relative for item in operation.gradients)
    inherited = scaled(1.1 * output.norm, far) + scaled(2.0 * share * _size(operation), moved)
    return Bound(inherited, 4.0 * output.norm)


def _normalisation(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if not inputs:
        return _unknown(operation, output)
    size, far = _size(operation), _far(operation)
    forward = inputs[0]
    condition = forward.norm / max(centred_norm(forward), 1e-300)
    moved = sum(item.relative for item in inputs) * max(1.0, condition / 8.0)
    if output.pair.present.role is Role.PARAM_GRAD:
        return _normalisation_parameter(operation, output, moved)
    deviation = centred_norm(forward) / math.sqrt(max(1, forward.numel))
    weights = [item.peak for item in inputs[1:] if item.pair.present.name.endswith("weight")]
    weight = max(weights, default=1.0)
    gain = max(weight / max(deviation, 1e-300), output.norm / max(size, 1e-300))
    inherited = in_linear_regime(DEFAULT_CONDITION * gain * size, moved)
    rounding = max(NORMALISATION_ROUNDINGS * output.norm, 4.0 * gain * size)
    return Bound(scaled(4.0 * gain, far) + inherited, rounding)


def _normalisation_parameter(operation: Operation, output: Measured, moved: float) -> Bound:
    """Sums over rows of `g` (bias) and of `g` times inputs of unit deviation (weight)."""
    added = _added(operation, output)
    gain = 4.0 * math.sqrt(added)
    size = gain * _size(operation)
    inherited = in_linear_regime(DEFAULT_CONDITION * size, moved)
    return Bound(scaled(gain, _far(operation)) + inherited, 4.0 * output.norm, size * growth(added))


def _attention(operation: Operation, output: Measured) -> Bound:
    inputs = floats(operation.inputs)
    if len(inputs) < 3:
        return _unknown(operation, output)
    query, key, value = inputs[:3]
    width = max(1, last_extent(query))
    row_norms = [item.norm / math.sqrt(rows_of(item)) for item in (query, key, value)]
    size = _size(operation)
    if output.pair.present.index == value.pair.present.index:
        scale = size
    else:
        other = (
            row_norms[1] if output.pair.present.index == query.pair.present.index else row_norms[0]
        )
        scale = 8.0 * size * row_norms[2] * other / math.sqrt(width)
    scale = max(DEFAULT_CONDITION * output.norm, 4.0 * scale)
    far = sum(item.relative for item in operation.entering if item.floating)
    return Bound(in_linear_regime(scale, far), scale)


def _dropout(operation: Operation, output: Measured) -> Bound:
    return Bound(scaled(dropout_gain(operation), _far(operation)), 2.0 * output.norm)


def _unknown(operation: Operation, output: Measured) -> Bound:
    """Relative condition, with the cancellation of a sum over rows for parameters."""
    far = sum(item.relative for item in operation.entering if item.floating)
    scale = DEFAULT_CONDITION * output.norm
    if output.pair.present.role is Role.PARAM_GRAD:
        rows = max(rows_of(item) for item in operation.gradients)
        scale *= max(1.0, math.sqrt(rows) / 4.0)
    inherited = in_linear_regime(scale, far)
    return Bound(inherited, scale + DEFAULT_CONDITION * _usual_norm(operation, output))


def _usual_norm(operation: Operation, output: Measured) -> float:
    """Norm that a gradient of so many elements has in the network that a call stands for, 0 for other calls.

    A gradient that is zero in exact arithmetic consists of rounding in terms that cancel; inside of compiled code these
    are not seen, and taken to be as large as the other gradients of the network, element by element.
    """
    count = sum(item.numel for item in operation.beside)
    norm = math.sqrt(sum(item.norm * item.norm for item in operation.beside))
    return norm * math.sqrt(output.numel / count) if count else 0.0


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
}
