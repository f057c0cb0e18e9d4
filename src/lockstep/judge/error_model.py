"""The error model: how far the output of an operator may be off, given how far its inputs are off.

Everything is in Euclidean norms, which statistics give exactly. For an output `y` of inputs `x_i`

    tolerance = INHERITED_MARGIN * sum_i G_i |dx_i|  +  NOISE_MARGIN * (u N + u_acc A)

where the gains `G_i` come from what the operator does (a Lipschitz constant or Cauchy-Schwarz where
there is one, a condition number elsewhere), `u` is the unit roundoff of the coarsest dtype at the
site, and `N`, `A` are the sizes of the numbers that were rounded. With bitwise equal inputs only
the second term is left, so the bound is sharp exactly where two runs on one machine are compared.

Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapters 3 (inner
products) and 4 (sums); the softmax Jacobian's norm: Gao and Pavel, On the properties of the softmax
function, 2017 (at most 1/2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lockstep.core.content_notes import NoteKind
from lockstep.core.finding import CallPair
from lockstep.core.operators import Family
from lockstep.core.site import Phase
from lockstep.judge.affine_regions import other_factor, region_error
from lockstep.judge.bounds import (
    Bound,
    bilinear_operands,
    floats,
    relative_bound,
    same_dtype,
    spread,
    subnormal_rounding,
    usual_product_norm,
)
from lockstep.judge.exact_sizes import with_common_factor, with_exact_size
from lockstep.judge.forward_model import forward_bound
from lockstep.judge.gradient_model import gradient_bound
from lockstep.judge.protocol import (
    AGREES,
    MEANINGLESS,
    Judgement,
    Operation,
    Region,
    bounded_judgement,
    is_gradient,
    whole_numbers,
)
from lockstep.judge.tolerances import (
    BIAS_DEVIATIONS,
    DEFAULT_CONDITION,
    DRAWN_ROUNDINGS,
    FLIP_DEVIATIONS,
    FLIP_SIZE,
    INHERITED_MARGIN,
    NOISE_MARGIN,
    NOISE_MARGIN_WITH_SETTING,
    NUMBER_GAIN,
    SETTING_MARGIN,
    SETTING_TRUST,
    SINGLE,
    SKETCHED_ALIKE,
    UPDATE_ROUNDINGS,
)
from lockstep.judge.update_model import correction_size, inherited_bound, rounded_size
from lockstep.measure.measured_pair import Measured, is_other_mask


class ErrorModel:
    """Judges by the error model of each operator family; a `lockstep.judge.protocol.Judge`."""

    @property
    def name(self) -> str:
        """As it stands under `judged_by`."""
        return "error-model"

    @property
    def looks_at_set_up(self) -> bool:
        """Return True: set-up changes the results of operators."""
        return True

    def notes(self) -> Sequence[str]:
        """It judges whatever there is."""
        return ()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        if output.equal:
            return AGREES
        entering = operation.entering
        if operation.family is Family.UNINITIALISED or _is_workspace(operation, output):
            return MEANINGLESS
        if not output.floating:
            return whole_numbers(entering, output)
        backward = is_gradient(output)
        bound = gradient_bound(operation, output) if backward else forward_bound(operation, output)
        inherited = INHERITED_MARGIN * bound.inherited
        inherited += NUMBER_GAIN * operation.numbers_apart * output.norm
        if operation.setting_differs:
            inherited /= SETTING_TRUST
        if operation.family is not Family.RANDOM and operation.decides_otherwise:
            inherited = math.inf
        if not backward and output.difference == math.inf and any(map(is_other_mask, entering)):
            inherited = math.inf  # -inf takes what it is added to along, -1e9 does not
        floor = _operator_floor(operation, bound, output) + rounded_parts(output)
        found = bounded_judgement(output, floor=floor, inherited=inherited, entering=entering)
        return with_exact_size(with_common_factor(found, operation, output), operation, output)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that the calls of a region made it from."""
        if target.equal:
            return AGREES
        if not target.floating:
            return whole_numbers(sources, target)
        found = other_factor(sources, target, region)
        if found is not None:
            return found
        everything = (*sources, target)
        if not region.operators:
            inherited = sum(item.possible_distance for item in floats(sources))
            size = max(sum(item.norm for item in floats(sources)), target.norm)
            drawn = 0.0 if sources else DRAWN_ROUNDINGS * size
            bound = Bound(inherited, size, drawn)
        else:
            bound = _region_bound(sources, target, region)
        if any(not item.floating and not item.equal for item in sources):
            bound = Bound(math.inf, bound.rounding)
        subnormal = math.sqrt(max(1, region.operators)) * subnormal_rounding(sources, target)
        subnormal *= NOISE_MARGIN
        floor = _floor(bound, everything, NOISE_MARGIN) + subnormal
        error = None if is_gradient(target) else region_error(region, target)
        if error is not None:
            floor = min(floor, NOISE_MARGIN * error * target.norm + subnormal)
        floor += rounded_parts(target)
        return bounded_judgement(
            target, floor=floor, inherited=INHERITED_MARGIN * bound.inherited, entering=sources
        )

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step.

        See `lockstep.judge.update_model`.
        """
        if output.equal:
            return AGREES
        if not output.floating:
            return whole_numbers(entering, output)
        inputs = floats(entering)
        size = UPDATE_ROUNDINGS * rounded_size(inputs, output, calls)
        size += correction_size(output, calls)
        floor = _floor(Bound(0.0, size), (*inputs, output), 1.0)
        floor += UPDATE_ROUNDINGS * subnormal_rounding((), output)
        inherited = inherited_bound(inputs, output, calls, margin=INHERITED_MARGIN)
        return bounded_judgement(output, floor=floor, inherited=inherited, entering=inputs)


def _is_workspace(operation: Operation, output: Measured) -> bool:
    """Bytes that `aten.mkldnn_rnn_layer` and its kin leave for their backward mean nothing."""
    return operation.family is Family.UNKNOWN and output.pair.present.dtype == "uint8"


def _region_bound(sources: Sequence[Measured], target: Measured, region: Region) -> Bound:
    """Bound by the number of calls alone.

    Each rounds its result once to the tensors' dtype; what goes on inside of it, where numbers may cancel, is carried
    in single precision at least.
    """
    roundings = math.sqrt(region.operators)
    bound = relative_bound(sources, target, condition=DEFAULT_CONDITION, roundings=roundings)
    inherited = bound.inherited
    # Numbers that are only moved or cast are as far apart behind a region as before.
    if region.keeps_elements:
        far = sum(one.possible_distance for one in floats(sources))
        inherited = min(inherited, far + region.coarsest_unit * target.norm)
    if target.pair.present.site.phase is Phase.BACKWARD:
        # Gradients lie in buckets that ranks exchange: one that is zero but for rounding is a part of a large tensor.
        inherited += sum(
            one.possible_distance for one in floats(sources) if one.numel > target.numel
        )
    return replace(
        bound,
        inherited=inherited,
        accumulation=DEFAULT_CONDITION * roundings * target.norm,
    )


def _floor(bound: Bound, items: Sequence[Measured], margin: float) -> float:
    unit = max((item.unit for item in items if item.floating), default=0.0)
    accumulator = min(unit, SINGLE) if unit > SINGLE else unit
    return margin * (unit * bound.rounding + accumulator * bound.accumulation)


def _operator_floor(operation: Operation, bound: Bound, output: Measured) -> float:
    items = (*operation.entering, output)
    if operation.family is Family.CROSS_ENTROPY and not operation.gradients:
        items = (
            output,
        )  # autocast widens 16-bit scores first: a loss rounds as its own dtype says
    same_inputs = all(item.equal for item in operation.entering)
    if operation.setting_differs and same_inputs:
        return SETTING_MARGIN * SINGLE * (bound.rounding + bound.accumulation)
    margin = NOISE_MARGIN_WITH_SETTING if operation.setting_differs else NOISE_MARGIN
    floor = _floor(bound, items, margin) + margin * subnormal_rounding(items, output)
    if not same_inputs or output.unit <= SINGLE or operation.family not in _ROUNDED_ONCE:
        return floor
    if operation.known.convolves and is_gradient(output):
        return floor  # kernels without a library add overlapping patches up in 16 bits
    if not same_dtype(items) or any(item.unit > output.unit for item in items if item.floating):
        return floor
    flipped = _flipped_roundings(bound, output)
    twice = rounded_twice(operation, output) or rounded_overlaps(operation, output)
    return min(floor, flipped + twice)


def _flipped_roundings(bound: Bound, output: Measured) -> float:
    """Floor of a 16-bit result that was computed in single precision and rounded once.

    An element comes out differently only where the single-precision noise `e` takes it across the
    middle between two 16-bit numbers, a share `e / (u |y|)` of all, each then off by one unit in
    the last place, `2 u` of it at most. (Measured on CPU: healthy kernels misround at most 0.12 %
    of the elements.)
    """
    noise = NOISE_MARGIN * SINGLE * (bound.rounding + bound.accumulation)
    whole = output.unit * output.norm + subnormal_rounding((), output)
    if not whole > 0:
        return noise
    expected = min(1.0, noise / whole) * output.numel
    flips = expected + FLIP_DEVIATIONS * math.sqrt(expected) + FLIP_DEVIATIONS
    return FLIP_SIZE * math.sqrt(min(1.0, flips / output.numel)) * whole + noise


_ROUNDED_ONCE = frozenset(
    {Family.SMOOTH, Family.KINKED, Family.ADDITIVE, Family.PRODUCT, Family.BILINEAR, Family.MEAN}
)


def rounded_parts(output: Measured) -> float:
    """Return how far the roundings of its parts may take a tensor that was added up of them, as Euclidean distance.

    A rank rounds its part `g_r` before anything is added: by at most `u |g_r|` in each element, with the unit roundoff
    `u` of their dtype. One rank rounds the sum alone, so where parts cancel the sums differ by more than `u |sum g_r|`.
    What is added up of `n` parts is then off by `u (|g_1| + ... + |g_n|)` at most; the recording tells that number, of
    the Euclidean norms. 0 for any other tensor.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2 (sums in any order).
    """
    notes = (
        record.content.told
        for record in (output.pair.reference, output.pair.candidate)
        if record is not None
    )
    return sum(float(one.fields[1]) for one in notes if one.kind is NoteKind.ADDED_UP)


__all__ = ["rounded_parts"]


# Results in 16 bits that one run rounds once and the other twice: a sum of products, then the sum with a bias.
#
# Where the library adds the bias, the whole is rounded once; where a kernel of its own adds it afterwards, the sum of
# products `s` is rounded before. Both round to nearest, so both are sound. Rounding `s` moves it by a quarter of a unit
# in its last place on average, and takes the result `y` to the neighbour as often as it is moved in such units. With
# `u` the unit roundoff, a unit in the last place is at most `2 u |y|`, so
#
#     E d_i**2 <= 2 u |y_i| (u / 2) |s_i|      and      |d| <= u sqrt(|y| |s|)      (Cauchy-Schwarz)
#
# A kernel that truncates leaves as large a distance. Statistics tell the two apart: differences of two roundings to
# nearest have either sign as often, and for signs drawn independently (Hoeffding, Probability inequalities for sums of
# bounded random variables, JASA 58, 1963, theorem 2)
#
#     |sum d_i| <= t |d|      and      |sum (y1_i + y2_i) d_i| = | |y2|**2 - |y1|**2 | <= t 2 max|y| |d|
#
# Truncation takes half a unit in the last place from each number, `u |y_i| / 2` at least, and `u |y|**2` from the
# square of the norm. Where chance may take as much, which is so for a result of less than some hundred elements,
# nothing is allowed.


def rounded_twice(operation: Operation, output: Measured) -> float:
    """How far apart a bias that is added to a rounded sum of products may take two results, in the tensor's unit.

    0 where nothing is added, and where the differences lie to one side or it cannot be told whether they do.
    """
    _, addends = bilinear_operands(operation)
    if not addends or is_gradient(output) or output.unit <= SINGLE or not _has_either_sign(output):
        return 0.0
    added = sum(spread(output, item) * item.norm for item in addends)
    return SKETCHED_ALIKE * output.unit * math.sqrt(output.norm * (output.norm + added))


def rounded_overlaps(operation: Operation, output: Measured) -> float:
    """How far apart two 16-bit results of a transposed convolution may be, in the tensor's unit.

    Each element is a sum over the windows that reach it. One kernel adds up all products in single precision and rounds
    once; another makes each window's part a tensor of the result's dtype, and adds these up there, then the bias. A
    rounding is at most `u |v|`, and `u |v| / sqrt(3)` in the mean (uniform errors). The parts of `T` windows together
    are as large as their sum, and so are `j / T` of its square after `j` of them (parts of independent signs):

        |d|**2 <= u**2 / 3 |y|**2 (1 + (2 + ... + T) / T + 1 + 1)

    for parts, sums, the bias, and the other kernel. 0 where the differences lie to one side.
    """
    product = operation.known.product
    operands, addends = bilinear_operands(operation)
    if product is None or product.contracted != (1, 0) or len(operands) != 2:
        return 0.0
    if is_gradient(output) or output.unit <= SINGLE or not _is_by_chance(output):
        return 0.0
    swept, filters = operands
    places = swept.numel / max(1, filters.shape[0]), output.numel / max(1, _channels(output))
    windows = math.prod(product.window(filters.shape)) * places[0] / places[1]
    if windows <= 1.0:
        return 0.0
    roundings = 3.0 + (windows + 1.0) / 2.0 - 1.0 / windows
    added = sum(spread(output, item) * item.norm for item in addends)
    size = max(output.norm + added, usual_product_norm(operation, output))
    return SKETCHED_ALIKE * output.unit * size * math.sqrt(roundings / 3.0)


def _channels(output: Measured) -> int:
    """Extent of the axis that convolutions put their filters on."""
    return output.shape[1] if len(output.shape) > 1 else 1


def _has_either_sign(output: Measured) -> bool:
    """Whether statistics show that two results do not differ to one side, as truncation would."""
    chance = 2.0 * BIAS_DEVIATIONS * output.peak * SKETCHED_ALIKE * output.distance
    return chance < output.unit * output.norm * output.norm and _is_by_chance(output)


def _is_by_chance(output: Measured) -> bool:
    """Whether differences of either sign, drawn independently, may change sum and norm as much as these do."""
    left, right = output.pair.reference, output.pair.candidate
    one = left.content.statistics if left is not None else None
    two = right.content.statistics if right is not None else None
    if one is None or two is None or not math.isfinite(output.distance):
        return False
    distance = SKETCHED_ALIKE * output.distance
    longer = abs(two.norm - one.norm) * (two.norm + one.norm)
    sum_apart = abs(two.mean - one.mean) * output.numel
    chance = BIAS_DEVIATIONS * distance
    return longer <= 2.0 * output.peak * chance and sum_apart <= chance
