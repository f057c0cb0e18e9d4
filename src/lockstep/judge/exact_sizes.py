"""Results whose size follows exactly from what goes in, however noisy that is: norms, and tensors times one number.

Statistics hold the Euclidean norm of each tensor in double precision. A norm is that number, and a tensor times `a` has
`|a|` times it. So each run's result is held against what entered that run: noise of the inputs hides nothing there.

A norm adds up squares, which have one sign, so its roundings grow as those of a sum do (`judge.bounds.growth`). Each
element of a product is off by a rounding of its own at most, so the norm of all is too, by the triangle inequality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lockstep.core.finding import Evidence
from lockstep.core.operators import Argument, Family
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.judge.bounds import (
    broadcast,
    centred_norm,
    floats,
    growth,
    subnormal_rounding,
    usual_product_norm,
)
from lockstep.judge.protocol import Judgement, Operation, word_for_evidence
from lockstep.judge.tolerances import (
    ALONG_THE_RESULT,
    FACTOR_ELEMENTS,
    INHERITED_MARGIN,
    KERNEL_ROUNDINGS,
    LINEAR_REGIME,
    NOISE_MARGIN,
    SINGLE,
)
from lockstep.measure.measured_pair import Measured

_NORMS = frozenset({"norm", "vectornorm", "linalgvectornorm"})
_UNSCALES = "ampnonfinitecheckandunscale"
_MULTIPLIES = frozenset({"mul", "multiply", _UNSCALES})
_EUCLIDEAN = (2, 2.0, "fro", None)
_ORDERS = (Argument("p", 1, 2.0), Argument("ord", 1, 2.0))
_MEASURED = (Evidence.SKETCH, Evidence.TENSORS)


def with_exact_size(judgement: Judgement, operation: Operation, output: Measured) -> Judgement:
    """Return the judgement of a result; not explained if the size of one run's is not what its own input makes it.

    judgement: What is said of the distance.
    operation, output: As `lockstep.judge.protocol.Judge.operator` gets them.
    """
    if judgement.unexplained or not _may_be_told(operation, output):
        return judgement
    if operation.name in _NORMS:
        found = _beyond_norm(operation, output)
    elif operation.name in _MULTIPLIES:
        found = _beyond_product(operation, output)
    else:
        return judgement
    if len(found) != 1:  # where both are off, it is not that operator
        return judgement
    ((run, (share, allowed)),) = found.items()
    words = (
        f"the {run}'s result has {1.0 + share:.9g} times the size that its own input makes it,"
        f" where rounding explains {allowed:.2g}"
    )
    return replace(
        judgement, tolerance=allowed, beyond_floor=True, unexplained=True, open=False, words=words, wrong_run=run
    )  # fmt: skip


_Beyond = dict[str, tuple[float, float]]
"""By run: what its size is off, and what may be, as shares of it."""


def _may_be_told(operation: Operation, output: Measured) -> bool:
    """Whether norms of all tensors are known as this tool takes them, and one operator is what both runs call."""
    return (
        not operation.gradients
        and not operation.setting_differs
        and output.pair.present.role is Role.OUTPUT
        and all(
            one.metrics.evidence in _MEASURED or one.equal for one in (*operation.inputs, output)
        )
    )


def _beyond_norm(operation: Operation, output: Measured) -> _Beyond:
    """Of a norm over all elements of a tensor."""
    tensors = floats(operation.inputs)
    orders = [one.of(operation.arguments) for one in _ORDERS]
    if output.numel != 1 or len(tensors) != 1 or any(one not in _EUCLIDEAN for one in orders):
        return {}
    if "linalg.norm" in operation.op or "linalg_norm" in operation.op:
        return {}  # of a matrix it may be another one
    allowed = NOISE_MARGIN * (output.unit + SINGLE * growth(tensors[0].numel))
    return _beyond(tensors[:1], output, allowed)


def _beyond_product(operation: Operation, output: Measured) -> _Beyond:
    """Of a tensor times one number."""
    tensors = floats(operation.inputs)
    if operation.name == _UNSCALES:
        tensors = [one for one in tensors if one.pair.present.name != _FLAG]
    numbers = [one for one in operation.arguments.values() if isinstance(one, (int, float))]
    one_number = len(tensors) == 2 and not numbers and tensors[1].numel == 1
    if not one_number or tensors[0].numel != output.numel:
        return {}
    unit = max(one.unit for one in (*tensors, output))
    return _beyond(tensors, output, NOISE_MARGIN * unit)


_FLAG = "args.1"
"""What a gradient scaler sets where a gradient is not finite."""


def _beyond(tensors: Sequence[Measured], output: Measured, allowed: float) -> _Beyond:
    """The runs whose result has another size than the product of the sizes of these tensors."""
    found = {}
    subnormal = NOISE_MARGIN * subnormal_rounding(tensors, output)
    for run in ("reference", "candidate"):
        sizes = [_size(_side(one, run)) for one in (output, *tensors)]
        expected = math.prod(sizes[1:])
        if not (all(map(math.isfinite, sizes)) and expected > 0):
            return {}
        share = sizes[0] / expected - 1.0
        if abs(share) > allowed + subnormal / expected:
            found[run] = (share, allowed)
    return found


def _side(one: Measured, run: str) -> TensorRecord | None:
    return one.pair.reference if run == "reference" else one.pair.candidate


def _size(record: TensorRecord | None) -> float:
    """Its Euclidean norm; NaN where that is not known, not of all ranks' parts, or not of finite elements alone."""
    known = None if record is None or record.content.note else record.statistics
    return math.nan if known is None or known.nan_count or known.inf_count else known.norm


# Results that one run has longer by a factor, within a distance that noise of the inputs allows.
#
# Between two processors, inputs in 16 bits may be a percent apart, and a worst-case bound lets a result be several
# percent off: a factor of 0.987 on it is not seen by its distance. Its direction tells. Where `y` is the reference's
# result and `d` the difference,
#
#     a = <y, d> / |y|**2 = ((|y + d| / |y|)**2 - 1 - (|d| / |y|)**2) / 2
#
# follows from exact norms and the distance. A sketch's distance is off by 4.6 % at one standard deviation, so `a` by
# `0.046 (|d| / |y|)**2`, which is nothing beside a `|d| / |y|` of a percent. Differences that come from roundings lie
# in any direction: of a random one in `n` dimensions,
#
#     P(|<y, d>| >= |y| |d| / 2) <= 2 exp(-n / 8)
#
# (Ball, An elementary introduction to modern convex geometry, 1997, lemma 2.2). Roundings that a layer has spread
# over its results have fewer dimensions than these have elements. In sound trainings on three kinds of processor, in
# two precisions, `a` was at most 0.45 of `|d| / |y|` and 0.53 of what enters, among 2 413 results of
# `FACTOR_ELEMENTS` elements or more. Named is what lies mostly along the result and is `INHERITED_MARGIN` times more
# than all that enters.
#
# Rounding to one side is a factor too: truncation takes up to one unit in the last place, `2 u`, from each number.

_HANDS_ON_SCALE = frozenset(
    {
        Family.MOVEMENT,
        Family.SMOOTH,
        Family.KINKED,
        Family.ADDITIVE,
        Family.PRODUCT,
        Family.BILINEAR,
        Family.SUM,
        Family.MEAN,
        Family.NORMALISATION,
        Family.ATTENTION,
    }
)
"""Families whose results grow as their inputs do, or not at all. An exponential makes a factor of a shift."""


def with_common_factor(judgement: Judgement, operation: Operation, output: Measured) -> Judgement:
    """Return the judgement of a result; not explained if one run's result is longer by a factor of its own.

    judgement: What is said of the distance.
    operation, output: As `lockstep.judge.protocol.Judge.operator` gets them.
    """
    if judgement.unexplained or not _may_be_longer(operation, output):
        return judgement
    along = _along(output)
    roundings = KERNEL_ROUNDINGS if output.unit <= SINGLE else 2.0
    allowed = max(roundings * output.unit, INHERITED_MARGIN * _entering(operation, output))
    mostly = abs(along) * output.norm > ALONG_THE_RESULT * output.distance
    if not mostly or abs(along) <= allowed:
        return judgement
    words = (
        f"the candidate's result is {word_for_evidence(output)}{1.0 + along:.4g} times the reference's,"
        f" where what enters explains {allowed:.2g} at most"
    )
    return replace(
        judgement,
        tolerance=allowed,
        beyond_floor=True,
        unexplained=True,
        open=False,
        words=words,
    )


def _may_be_longer(operation: Operation, output: Measured) -> bool:
    entering = floats(operation.entering)
    return (
        operation.family in _HANDS_ON_SCALE
        and not operation.setting_differs
        and output.pair.present.role in (Role.OUTPUT, Role.GRAD_INPUT)
        and output.metrics.evidence in (Evidence.SKETCH, Evidence.TENSORS)
        and output.numel >= FACTOR_ELEMENTS
        and output.difference <= LINEAR_REGIME
        and bool(entering)
        and all(item.equal or item.difference <= LINEAR_REGIME for item in entering)
        and all(item.equal for item in operation.entering if not item.floating)
    )


def _along(output: Measured) -> float:
    """`a` of the file's head; 0 where norms are not known."""
    left, right = output.pair.reference, output.pair.candidate
    one = left.statistics if left is not None else None
    two = right.statistics if right is not None else None
    if one is None or two is None or not (one.norm > 0 and math.isfinite(two.norm)):
        return 0.0
    longer, apart = two.norm / one.norm, output.distance / one.norm
    return (longer * longer - 1.0 - apart * apart) / 2.0


def _entering(operation: Operation, output: Measured) -> float:
    """How far all that enters is off, relative to the result where terms cancel in it."""
    entering = floats(operation.entering)
    far = sum(item.relative for item in entering)
    match operation.family:
        case Family.ADDITIVE if not operation.gradients:
            return max(far, broadcast(entering, output) / output.norm)
        case Family.BILINEAR if not operation.gradients:
            return far * max(1.0, usual_product_norm(operation, output) / output.norm)
        case Family.NORMALISATION:
            first = floats(operation.inputs)[0]
            return far * max(1.0, first.norm / max(centred_norm(first), 1e-300))
    return far
