"""How far a candidate tensor is from its reference: numbers in, numbers out.

With `r` the reference, `c` the candidate, `d = c - r` and sums over all `n` compared positions:

==========================  ========================================================================
`cosine`                    `sum(r c) / (|r|_2 |c|_2)`; 1 where both are zero, 0 where one is
`max_abs`                   `max |d|`
`accumulated_relative`      `sum |d| / sum |r|`
`rel_l2`                    `|d|_2 / |r|_2`, the relative Euclidean distance
`kl_divergence`             `sum p ln(p / q)`, `p = |r| / sum |r|`, `q = |c| / sum |c|`, in nats
`standard_deviation`        of `d` about its mean, population form: the scatter left when a constant
                            offset is taken away
`mean_abs`                  `sum |d| / n`
`rmse`                      `|d|_2 / sqrt(n)`
`max_relative`              `max |d| / |r|`
`mean_relative`             mean of `|d| / |r|`
`max_ulp`                   numbers of the dtype between `r` and `c`, at most; NaN for integers
`within_1e_3` `within_5e_3`  share of positions with `|d| <= 0.001 |r|`, `0.005 |r|`
==========================  ========================================================================

The first ten are the vector comparison metrics of the MindStudio accuracy analyser (CANN, "Network
Accuracy Comparison Result File"). Where it departs from a plain formula, Lockstep does not follow:
its accumulated relative error is a sum of element ratios, which one element near zero decides; its
standard deviation is a text with mean and deviation of both sides, which stand in the statistics
here; its KL divergence shifts each tensor by its own minimum, which hides a constant offset.
The ULP distance counts as in Goldberg (What every computer scientist should know about
floating-point arithmetic, 1991, section 1.2) over the ordered numbers of the dtype, +0 and -0 being
one; the Kullback-Leibler divergence is that of Kullback and Leibler (1951), equation 2.2.

Zeros. A ratio of sums with a zero reference is 0 where the numerator is 0, else infinite. Positions
with `r = 0` and `c != 0` have no relative error: they are left out of `max_relative` and
`mean_relative` (both infinite if every position is such) and lie within no share. In `q` an exact
zero facing `r != 0` counts as `2**-24 / n`, so that one flushed element does not make the
divergence infinite; it is infinite where just one of the tensors is all zero.

Non-finite numbers. NaN facing NaN and an infinity facing the same infinity are equal elements of
difference 0. NaN facing anything else adds to `nan_mismatch`, an infinity facing another number to
`inf_mismatch`; these positions are left out of every sum and lie within no share. Where nothing is
left every number but the counts is NaN. Complex tensors are measured by magnitudes of differences,
with the real part of the Hermitian product in the cosine and the larger ULP distance of both parts.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lockstep.core.content_notes import NoteKind
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Evidence, Metrics
from lockstep.core.records import (
    Array,
    Content,
    Pieces,
    Statistics,
    is_other_checksum_alone,
)
from lockstep.core.sketch import distance
from lockstep.measure.passes import sums_of
from lockstep.measure.sums import clipped_cosine, ratio_of

IDENTICAL = Metrics(
    evidence=Evidence.DIGEST,
    cosine=1.0,
    max_abs=0.0,
    accumulated_relative=0.0,
    rel_l2=0.0,
    kl_divergence=0.0,
    standard_deviation=0.0,
    mean_abs=0.0,
    rmse=0.0,
    max_relative=0.0,
    mean_relative=0.0,
    max_ulp=0.0,
    within_1e_3=1.0,
    within_5e_3=1.0,
)
"""What equal digests tell: every element is equal, bit by bit."""


def measure(reference: Content, candidate: Content, *, read_tensors: bool) -> Metrics:
    """Measure two contents by the best evidence that both hold.

    Equal digests come first, then whole tensors, sketches and statistics. A checksum that another tool noted counts as
    far as the numbers that it noted beside it allow, see `are_equal`.

    Parameters
    ----------
    reference, candidate
        Contents of equal element count; their shapes may differ, elements face each other in
        row-major order.
    read_tensors
        Whether tensors that were saved whole may be read; reading takes most of the time.

    Returns
    -------
    Metrics
        With `Evidence.NONE` where nothing can be said.

    Raises
    ------
    CorruptError
        If a tensor file is damaged.
    """
    if are_equal(reference, candidate):
        return IDENTICAL
    if reference.numel != candidate.numel:
        return Metrics(Evidence.NONE)
    if read_tensors and reference.loader is not None and candidate.loader is not None:
        dtype = common_dtype(reference, candidate)
        return measure_tensors(reference.opened(), candidate.opened(), dtype=dtype)
    if reference.statistics is None or candidate.statistics is None:
        return Metrics(Evidence.NONE)
    if reference.sketch_loader is not None and candidate.sketch_loader is not None:
        return measure_sketches(reference, candidate)
    return measure_statistics(reference, candidate)


def are_equal(reference: Content, candidate: Content) -> bool:
    """Whether digests tell that two contents are the same, bit by bit.

    Another tool may take a checksum on a thread of its own. If an operator works in place meanwhile, the checksum is
    one of a later moment. The numbers beside it were taken at once, so they come first. Extremes are exact. A mean and
    a norm may have been summed in another order, so they differ only beyond `n u` of float32 (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 4.2). Extremes that are one number tell every element.

    Examples
    --------
    >>> numbers = Statistics(0.0, 1.0, 0.5, 1.0, 0, 0, 0)
    >>> left = Content(0, "float32", (2,), "", "crc32:1f", numbers)
    >>> are_equal(left, replace(left, statistics=replace(numbers, maximum=2.0)))
    False
    """
    if is_other_checksum_alone(reference, candidate):
        return _is_constant(reference)
    if reference.digest is None or reference.digest != candidate.digest:
        return False
    read = reference.loader is not None and candidate.loader is not None
    one, two = reference.statistics, candidate.statistics
    if ":" not in reference.digest or read or one is None or two is None:
        return True
    if _are_apart(one.minimum, two.minimum, 0.0) or _are_apart(one.maximum, two.maximum, 0.0):
        return False
    summed = reference.numel * unit_roundoff("float32")
    # The mean of the magnitudes is at most the norm over the root of their number.
    mean = summed * one.norm / math.sqrt(max(1, reference.numel))
    return not (
        _are_apart(one.mean, two.mean, mean) or _are_apart(one.norm, two.norm, summed * one.norm)
    )


def _is_constant(content: Content) -> bool:
    """Whether its extremes tell every element, bit by bit: they are one number, which is none of two zeros."""
    numbers = content.statistics
    assert numbers is not None
    whole = not is_floating(content.dtype) and abs(numbers.minimum) < _EXACT
    return numbers.minimum == numbers.maximum and (whole or bool(numbers.minimum))


_EXACT = 2.0**53
"""Whole numbers below are told apart as floats of double precision (IEEE 754)."""


def _are_apart(one: float, two: float, most: float) -> bool:
    """Whether two numbers, as far as both were noted, are further apart than `most`."""
    return abs(one - two) > most


def measure_tensors(reference: Array | Pieces, candidate: Array | Pieces, *, dtype: str) -> Metrics:
    """Measure two whole tensors in one pass over blocks, with double accumulation.

    Memory is constant: either array may be mapped from a file or have any strides, or be read in
    pieces. Numbers do not depend on how many processors there are.

    Parameters
    ----------
    reference, candidate
        Real, complex, integer or boolean arrays of equal size; elements face each other in
        row-major order.
    dtype
        Dtype whose numbers `max_ulp` counts; bfloat16 values arrive widened to float32.

    Raises
    ------
    ValueError
        If the sizes differ.

    Examples
    --------
    >>> measured = measure_tensors(np.array([3.0, 4.0]), np.array([3.0, 4.5]), dtype="float64")
    >>> measured.max_abs, measured.rel_l2
    (0.5, 0.1)
    """
    if reference.size != candidate.size:
        raise ValueError(f"{reference.size} reference elements cannot face {candidate.size}")
    with np.errstate(all="ignore"):
        return sums_of(reference, candidate, dtype).metrics()


def common_dtype(reference: Content, candidate: Content) -> str:
    """The coarser of two dtypes: the one whose numbers `max_ulp` counts."""
    return max(reference.dtype, candidate.dtype, key=unit_roundoff)


def measure_sketches(
    reference: Content, candidate: Content, estimated: float | None = None
) -> Metrics:
    """Estimate from sketches and exact norms; `max_abs` is a lower bound.

    The distance is that of the sketches; the cosine follows from it by polarisation,
    `1 - (|d|^2 - (|c| - |r|)^2) / (2 |r| |c|)`, held inside [-1, 1]. See `lockstep.core.sketch`
    for the error of the estimate. `estimated` is the distance where it was taken before.

    Raises ValueError if a sketch or the statistics are missing.
    """
    left, right = _both_statistics(reference, candidate)
    if estimated is None:
        sketches = reference.sketch, candidate.sketch
        if sketches[0] is None or sketches[1] is None:
            raise ValueError("both contents need a sketch")
        with np.errstate(all="ignore"):  # sketches of huge doubles overflow to infinity
            estimated = distance(sketches[0], sketches[1])
    if left.norm > 0 and right.norm > 0:
        gap = (right.norm - left.norm) / left.norm
        relative = estimated / left.norm
        cosine = 1 - (relative * relative - gap * gap) * left.norm / (2 * right.norm)
    else:
        cosine = 1.0 if left.norm == right.norm else 0.0
    lower = _lower_bounds(reference, left, right)
    nan_mismatch, inf_mismatch = _count_mismatch(left, right)
    return Metrics(
        evidence=Evidence.SKETCH,
        cosine=clipped_cosine(cosine),
        max_abs=lower[1],
        rel_l2=ratio_of(estimated, left.norm),
        rmse=estimated / math.sqrt(max(1, _finite_count(reference, left))),
        nan_mismatch=nan_mismatch,
        inf_mismatch=inf_mismatch,
    )


def measure_statistics(reference: Content, candidate: Content) -> Metrics:
    """Return the least distance that norms, means and extremes alone prove.

    `|d|_2` is at least `| |c|_2 - |r|_2 |` (triangle inequality), `sqrt(n) |mean(c) - mean(r)|`
    (Cauchy-Schwarz), `|max(c) - max(r)|` and `|min(c) - min(r)|`. A bound of 0 proves nothing: a
    permuted tensor has it too. A number that another tool left out proves nothing; where that is the norm, the distance
    is related to the largest that it can be.

    Raises ValueError if the statistics are missing.
    """
    if _is_uncounted(reference, candidate):
        return Metrics(Evidence.NONE)
    left, right = _both_statistics(reference, candidate)
    as_written = _as_written(reference, left), _as_written(candidate, right)
    lower_distance, lower_max_abs = _lower_bounds(reference, *as_written)
    nan_mismatch, inf_mismatch = _count_mismatch(left, right)
    return Metrics(
        evidence=Evidence.STATISTICS,
        max_abs=lower_max_abs,
        rel_l2=ratio_of(lower_distance, left.norm),
        rmse=lower_distance / math.sqrt(max(1, _finite_count(reference, left))),
        nan_mismatch=nan_mismatch,
        inf_mismatch=inf_mismatch,
    )


def symmetric_difference(reference: Content, candidate: Content, metrics: Metrics) -> float:
    """Relative Euclidean distance that does not depend on which side is called the reference.

    `|c - r|_2 / max(|c|_2, |r|_2)`: 0 for equal tensors and where both are zero, infinite where
    non-finite elements do not match, NaN where it is not known. An estimate or a lower bound where
    `metrics` is one.
    """
    if metrics.evidence is Evidence.DIGEST:
        return 0.0
    if metrics.nan_mismatch or metrics.inf_mismatch:
        return math.inf
    if reference.statistics is None or candidate.statistics is None:
        return metrics.rel_l2
    left, right = _both_statistics(reference, candidate)
    if any(_count_mismatch(left, right)):
        return math.inf
    if left.norm == 0 and right.norm > 0:
        return 1.0
    if not right.norm > left.norm:
        return metrics.rel_l2
    return metrics.rel_l2 * (left.norm / right.norm)


def _both_statistics(reference: Content, candidate: Content) -> tuple[Statistics, Statistics]:
    if reference.statistics is None or candidate.statistics is None:
        raise ValueError("both contents need statistics")
    return _measurable(reference, reference.statistics), _measurable(
        candidate, candidate.statistics
    )


def _measurable(content: Content, statistics: Statistics) -> Statistics:
    """The same with norm 0 where no element is finite, as sums over nothing are; the largest possible where unknown."""
    if not _finite_count(content, statistics):
        return replace(statistics, norm=0.0)
    if math.isnan(statistics.norm):
        return replace(statistics, norm=norm_at_most(content, statistics))
    return statistics


def _as_written(content: Content, statistics: Statistics) -> Statistics:
    """The same without a norm that is only a bound."""
    assert content.statistics is not None
    unknown = math.isnan(content.statistics.norm)
    return replace(statistics, norm=math.nan) if unknown else statistics


def norm_at_most(content: Content, statistics: Statistics) -> float:
    """The Euclidean norm, or the largest that it can be by the extremes where it was left out; NaN without those."""
    if not math.isnan(statistics.norm):
        return statistics.norm
    peak = max(abs(statistics.minimum), abs(statistics.maximum))
    return peak * math.sqrt(_finite_count(content, statistics))


def _is_uncounted(left: Content, right: Content) -> bool:
    """Whether both may hold the same elements that are NaN or infinite, of which one does not say how many."""
    if NoteKind.UNCOUNTED not in (left.told.kind, right.told.kind):
        return False
    if left.statistics is None or right.statistics is None:
        return True
    one, two = left.statistics, right.statistics
    if one.nan_count or two.nan_count:
        return bool(one.nan_count and two.nan_count)
    return bool(one.inf_count and two.inf_count)


def _lower_bounds(content: Content, left: Statistics, right: Statistics) -> tuple[float, float]:
    """Least Euclidean distance and least maximum difference that the statistics allow.

    Norms and means are sums in double precision, in the order of memory: of equal elements in another layout they
    differ by their rounding, which grows with the root of the count (Higham and Mary, A new approach to probabilistic
    rounding error analysis, 2019).
    """
    if any(_count_mismatch(left, right)):
        return math.nan, math.nan
    root = math.sqrt(_finite_count(content, left))
    if root == 0:
        return 0.0, 0.0
    gap, mean, *extremes = (
        _apart(left.norm, right.norm), _apart(left.mean, right.mean) * root,
        _apart(left.maximum, right.maximum), _apart(left.minimum, right.minimum),
    )  # fmt: skip
    rounding = _SUM_ROUNDINGS * root * _DOUBLE * max(left.norm, right.norm, 0.0)
    spread = max(0.0, gap - rounding, mean - rounding)
    return max(spread, *extremes), max(spread / root, *extremes)


_DOUBLE = 2.0**-53
_SUM_ROUNDINGS = 4.0
"""Standard deviations of a sum's rounding that two orders of its terms may be apart."""


def _apart(left: float, right: float) -> float:
    """How far apart two numbers are; 0 where one was left out."""
    return 0.0 if math.isnan(left) or math.isnan(right) else abs(right - left)


def _count_mismatch(left: Statistics, right: Statistics) -> tuple[int, int]:
    """How many elements are NaN or infinite on one side only, at least: as many as counts and places prove."""
    counts = abs(left.nan_count - right.nan_count), abs(left.inf_count - right.inf_count)
    if any(counts) or not are_placed_apart(left, right):
        return counts
    # A NaN that stands elsewhere makes two positions, an infinity of the other sign one.
    return (0, 1) if left.inf_count else (2, 0)


def are_placed_apart(left: Statistics, right: Statistics) -> bool:
    """Return whether elements that are not finite are known to be at different places, or of different sign."""
    places = left.not_finite, right.not_finite
    return None not in places and places[0] != places[1]


def _finite_count(content: Content, statistics: Statistics) -> int:
    return max(0, content.numel - statistics.nan_count - statistics.inf_count)
