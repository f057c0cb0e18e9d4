"""Single elements that are far off where all others are equal: no rounding, whatever the norm of the difference says.

A tolerance for the norm of a difference lets one element of a million be anything. A sound kernel that computes
otherwise rounds otherwise at many elements, and by little; so where the inputs are equal bit by bit and so is nearly
all of the result, an element that is off by many roundings of its own is wrong.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lockstep.core.dtypes import smallest_positive, unit_roundoff
from lockstep.core.finding import Evidence
from lockstep.core.records import Array
from lockstep.judge.protocol import Judgement
from lockstep.judge.tolerances import STRAY_ELEMENTS, STRAY_ROUNDINGS, STRAY_SCALE
from lockstep.measure.measured_pair import Measured


def with_stray_elements(judgement: Judgement, output: Measured) -> Judgement:
    """Return the judgement of a result of equal inputs; not explained if single elements are far off.

    judgement: What is said of the tensor as a whole.
    output: The tensor. Only one that both runs saved whole is looked at.
    """
    if judgement.unexplained or not _may_be_stray(output):
        return judgement
    stray, worst = _stray(output)
    if not stray:
        return judgement
    elements = f"{stray} of {output.pair.present.content.numel} elements"
    words = f"{elements} {'is' if stray == 1 else 'are'} off by up to {worst:.3g}, nearly all others are equal"
    return replace(
        judgement, tolerance=math.nan, floor=0.0, beyond_floor=True, unexplained=True, words=words
    )


def _may_be_stray(output: Measured) -> bool:
    """Whether nearly all elements are within a thousandth and one is far off, by what was measured already."""
    metrics, statistics = output.metrics, output.pair.present.statistics
    if metrics.evidence is not Evidence.TENSORS or not output.floating or output.shape_differs:
        return False
    numel = output.pair.present.content.numel
    if statistics is None or metrics.within_1e_3 < 1.0 - max(STRAY_ELEMENTS, 1.0 / numel):
        return False
    typical = STRAY_SCALE * statistics.norm / math.sqrt(numel)
    return metrics.max_abs > STRAY_ROUNDINGS * output.unit * typical


def _stray(output: Measured) -> tuple[int, float]:
    """How many elements are far off by their own scale, and the largest error; none where many differ at all."""
    pair = output.pair
    if pair.layout is not None:
        return 0, 0.0
    left, right = (np.asarray(record.load()) for record in pair.both)
    return stray_elements(left, right, output.unit, output.norm)


def stray_elements(left: Array, right: Array, unit: float, norm: float) -> tuple[int, float]:
    """How many elements are far off by their own scale, and the largest error; none where many differ at all.

    Parameters
    ----------
    left, right
        Results of one shape, made of equal inputs.
    unit
        Unit roundoff of their dtype.
    norm
        Euclidean norm of the result.
    """
    left, right = left.ravel(), right.ravel()
    differing = np.flatnonzero(left != right)
    if differing.size > max(1.0, STRAY_ELEMENTS * left.size):
        return 0, 0.0
    errors = np.abs(left[differing].astype(np.float64) - right[differing])
    typical = STRAY_SCALE * norm / math.sqrt(max(left.size, 1))
    size = np.maximum(np.abs(left[differing]), np.abs(right[differing]))
    stray = errors > STRAY_ROUNDINGS * unit * np.maximum(size, typical)
    if stray.any() and (rounded := _rounded_to(left, right)) is not None:
        last_place = np.maximum(
            2.0 * unit_roundoff(rounded) * size, smallest_positive(rounded) or 0.0
        )
        stray &= errors > STRAY_ROUNDINGS * unit * np.maximum(size, typical) + last_place
    return int(stray.sum()), float(errors.max(initial=0.0, where=stray))


def _rounded_to(left: Array, right: Array) -> str | None:
    """The 16-bit dtype that holds every number of two float32 results, or None.

    Under autocast the gradient of a float32 weight is a 16-bit result that was converted: an element may differ by one
    unit in the last place of that dtype. One number that the dtype cannot hold shows that nothing was rounded to it.
    """
    if left.dtype != np.float32 or right.dtype != np.float32:
        return None
    bits = [np.ascontiguousarray(one).view(np.uint32) for one in (left, right)]
    if not any((one & 0xFFFF).any() for one in bits):
        return "bfloat16"
    with np.errstate(over="ignore"):
        halves = [one.astype(np.float16).astype(np.float32) for one in (left, right)]
    held = zip(halves, (left, right), strict=True)
    return "float16" if all(np.array_equal(*both, equal_nan=True) for both in held) else None


__all__ = ["stray_elements", "with_stray_elements"]
