"""The pieces that error bounds are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.core.operators import ADDEND_FACTOR, Product
from lockstep.judge.protocol import Operation
from lockstep.judge.tolerances import LINEAR_REGIME
from lockstep.measure.measured_pair import Measured


@dataclass(frozen=True, slots=True)
class Bound:
    """How far an output may be off, as Euclidean norms in the output's unit.

    inherited: What the inputs' differences explain.
    rounding: Multiplied by the unit roundoff of the coarsest dtype at the site: rounding of operands and results.
    accumulation: Multiplied by the unit roundoff of the accumulator: single precision for 16-bit dtypes (cuBLAS, oneDNN
        and ATen all accumulate them so), else the dtype itself.
    """

    inherited: float
    rounding: float
    accumulation: float = 0.0


Rule = Callable[[Operation, Measured], Bound]


def scaled(gain: float, distance: float) -> float:
    """`gain * distance`, where no distance stays none whatever the gain."""
    return 0.0 if distance == 0.0 else gain * distance


def in_linear_regime(gain: float, relative: float) -> float:
    """`gain * relative`; beyond `LINEAR_REGIME` nothing is claimed."""
    return math.inf if relative > LINEAR_REGIME else scaled(gain, relative)


def growth(length: float) -> float:
    """Growth of rounding in a sum of `length` terms, relative to its Cauchy-Schwarz bound,
    dimensionless.

    Kernels add in blocks; with blocks of `sqrt(n)` terms random roundings grow like `n**0.25`
    (Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput.
    41, 2019, applied to blocked summation, Blanchard, Higham and Mary 2020). Halved, as the bound
    it multiplies is loose already for terms of mixed sign.
    """
    return max(1.0, 0.5 * math.sqrt(math.sqrt(max(length, 1.0))))


def subnormal_rounding(items: Iterable[Measured], output: Measured) -> float:
    """How far one rounding of each element may take a tensor of subnormal numbers, as a norm in its unit.

    The dtype is the coarsest of what enters and leaves: under autocast a float32 gradient was rounded to 16 bits.

    Gradual underflow keeps the spacing of the smallest normal numbers for all below them (IEEE 754-2019, section 3.3;
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., equation 2.8): in fp16 `2**-24`, below 6e-5.
    """
    return max(item.least_rounding for item in (*items, output)) * math.sqrt(output.numel)


def spread(output: Measured, item: Measured) -> float:
    """Gain of broadcasting an input over a larger output."""
    return math.sqrt(max(1.0, output.numel / max(1, item.numel)))


def broadcast(items: Iterable[Measured], output: Measured, gain: float = 1.0) -> float:
    """Return the bound inherited from inputs that go into each element of the output, times `gain`."""
    return sum(scaled(gain * spread(output, item), item.possible_distance) for item in items)


def gathered(large: Measured, small: Measured) -> float:
    """How many elements of one tensor are added up into each element of a smaller one."""
    return max(1.0, large.numel / max(1, small.numel))


def floats(items: Iterable[Measured]) -> list[Measured]:
    """Those that round."""
    return [item for item in items if item.floating]


def last_extent(item: Measured) -> int:
    """Size of the last dimension, at least 1."""
    return max(1, item.shape[-1]) if item.shape else 1


def rows_of(item: Measured) -> float:
    """Number of rows along the last dimension, at least 1."""
    return max(1.0, item.numel / last_extent(item))


def centred_norm(item: Measured) -> float:
    """Norm of a tensor less its mean, at least a thousandth of its norm."""
    statistics = item.pair.present.statistics
    if statistics is None or not math.isfinite(statistics.mean):
        return item.norm
    square = item.norm * item.norm - item.numel * (statistics.mean * statistics.mean)
    return max(math.sqrt(max(square, 0.0)), 1e-3 * item.norm)


def relative_bound(
    items: Iterable[Measured], output: Measured, *, condition: float, roundings: float
) -> Bound:
    """Bound by relative condition number: the relative differences of all inputs add up, times
    `condition`."""
    total = sum(item.relative for item in items if item.floating)
    return Bound(in_linear_regime(condition * output.norm, total), roundings * output.norm)


def dropout_gain(operation: Operation) -> float:
    """Return the factor that a dropout applies to the elements it keeps: `1 / (1 - p)`."""
    argument = operation.known.dropped
    share = None if argument is None else argument.of(operation.arguments)
    dropped = float(share) if isinstance(share, (int, float)) and 0 <= share < 1 else 0.5
    return 1.0 / (1.0 - dropped)


def addend_gain(operation: Operation) -> float:
    """Return the factor that an addition applies to one of its terms: `alpha`, at least 1."""
    alpha = ADDEND_FACTOR.of(operation.arguments)
    return max(1.0, abs(alpha)) if isinstance(alpha, (int, float)) else 1.0


def window_gain(operation: Operation) -> float:
    """How much further a difference may spread where windows overlap: 3 for a pooling, 1 elsewhere."""
    return 3.0 if operation.known.pools else 1.0


def is_summed(operation: Operation) -> bool:
    """Whether a loss was reduced by a sum instead of a mean."""
    return "sum" in operation.arguments.values() if _hashable(operation) else False


def _hashable(operation: Operation) -> bool:
    return any(isinstance(value, str) for value in operation.arguments.values())


def same_dtype(items: Iterable[Measured]) -> bool:
    """Whether every pair has one dtype on both sides."""
    for item in items:
        left, right = item.pair.reference, item.pair.candidate
        if left is not None and right is not None and left.dtype != right.dtype:
            return False
    return True


def bilinear_operands(operation: Operation) -> tuple[list[Measured], list[Measured]]:
    """Return the two factors of a sum of products, and the summand (bias)."""
    inputs, product = floats(operation.inputs), operation.known.product
    if len(inputs) != 3 or product is None or product.added is None:
        return inputs, []
    return [inputs[product.left], inputs[product.right]], [inputs[product.added]]


def product_bound(left: Measured, right: Measured, output: Measured, factor: float) -> Bound:
    """Bound of sums of products of two tensors, times `factor`."""
    product = factor * left.norm * right.norm
    length = reduction_length(left, right, output)
    inherited = factor * (
        scaled(right.norm, left.possible_distance) + scaled(left.norm, right.possible_distance)
    )
    rounding = output.norm + 2.0 * product / math.sqrt(length)
    return Bound(inherited, rounding, product * growth(length))


def reduction_length(left: Measured, right: Measured, output: Measured) -> float:
    """Number of products in each sum: `(n K)(K m) / (n m) = K**2`, at least 1."""
    return max(1.0, math.sqrt(left.numel * right.numel / max(1, output.numel)))


def patch_gain(operation: Operation) -> float:
    """How often a convolution uses each input element, as a factor on norms; 1 elsewhere."""
    operands, _ = bilinear_operands(operation)
    product = operation.known.product
    if not operation.known.convolves or len(operands) < 2:
        return 1.0
    window = (product or Product()).window(operands[1].shape)
    return math.sqrt(max(1, math.prod(window)))


def loss_rows(operation: Operation) -> float:
    """Number of predictions in a loss: elements of an integer target, else rows of the input."""
    for item in operation.inputs:
        if not item.floating and item.numel > 0:
            return float(item.numel)
    inputs = floats(operation.inputs)
    return rows_of(inputs[0]) if inputs else 1.0


def moves_exactly(inputs: Iterable[Measured], output: Measured) -> bool:
    """Whether moving data rounds nothing: one dtype throughout, or a cast of equal numbers."""
    inputs = list(inputs)
    if not inputs or not same_dtype((*inputs, output)):
        return False
    one_dtype = all(item.pair.present.dtype == output.pair.present.dtype for item in inputs)
    return one_dtype or all(item.equal for item in inputs)


def usual_product_norm(operation: Operation, output: Measured) -> float:
    """Norm that sums of products with random signs have; 0 where it is not known.

    Where a result is small because its terms cancel, neither kind of error is.
    """
    operands, _ = bilinear_operands(operation)
    product = operation.known.product
    if product is None or product.contracted is None:
        return 0.0
    if len(operands) != 2 or not operands[0].shape:
        return 0.0
    left, right = operands
    products = output.numel * left.shape[-1]
    if operation.known.convolves:
        swept = left if "transpose" in operation.name else output
        products = swept.numel * product.terms(right.shape)
    return left.norm * right.norm * math.sqrt(products / max(1, left.numel * right.numel))
