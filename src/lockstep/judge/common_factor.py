"""Results that one run has longer by a factor, within a distance that noise of the inputs allows.

Between two processors, inputs in 16 bits may be a percent apart, and a worst-case bound lets a result be several
percent off: a factor of 0.987 on it is not seen by its distance. Its direction tells. Where `y` is the reference's
result and `d` the difference,

    a = <y, d> / |y|**2 = ((|y + d| / |y|)**2 - 1 - (|d| / |y|)**2) / 2

follows from exact norms and the distance. A sketch's distance is off by 4.6 % at one standard deviation, so `a` by
`0.046 (|d| / |y|)**2`, which is nothing beside a `|d| / |y|` of a percent. Differences that come from roundings lie in
any direction: of a random one in `n` dimensions,

    P(|<y, d>| >= |y| |d| / 2) <= 2 exp(-n / 8)

(Ball, An elementary introduction to modern convex geometry, 1997, lemma 2.2). Roundings that a layer has spread over
its results have fewer dimensions than these have elements. In sound trainings on three kinds of processor, in two
precisions, `a` was at most 0.45 of `|d| / |y|` and 0.53 of what enters, among 2 413 results of `FACTOR_ELEMENTS`
elements or more. Named is what lies mostly along the result and is `INHERITED_MARGIN` times more than all that enters.

Rounding to one side is a factor too: truncation takes up to one unit in the last place, `2 u`, from each number.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lockstep.core.finding import Evidence
from lockstep.core.operators import Family
from lockstep.core.site import Role
from lockstep.judge.bounds import broadcast, centred_norm, floats, usual_product_norm
from lockstep.judge.protocol import Judgement, Operation, word_for_evidence
from lockstep.judge.tolerances import (
    ALONG_THE_RESULT,
    FACTOR_ELEMENTS,
    INHERITED_MARGIN,
    KERNEL_ROUNDINGS,
    LINEAR_REGIME,
    SINGLE,
)
from lockstep.measure.measured_pair import Measured

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

    Parameters
    ----------
    judgement
        What is said of the distance.
    operation, output
        As `lockstep.judge.protocol.Judge.operator` gets them.
    """
    if judgement.unexplained or not _may_be_told(operation, output):
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


def _may_be_told(operation: Operation, output: Measured) -> bool:
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
