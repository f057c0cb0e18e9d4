"""Elements of one output by their magnitude: a coordinate of hundreds hides what happens to a score beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.judging import FEW_ELEMENTS, LOCAL_MARGIN, NOISE_MARGIN
from lockstep_serve.servable import Array

_BAND = 4
"""Binary orders of magnitude that are judged together: within one, no element weighs less than a 256th in a square."""
_FEWEST = 16
"""Elements of a band; fewer go with those of the next larger one."""


@dataclass(frozen=True, slots=True)
class Band:
    """Elements of about one size that are further off than they may be.

    size: Root mean square of the reference there.
    difference, tolerance: Root mean squares: of the difference, and of what it may be.
    """

    size: float
    difference: float
    tolerance: float


def band_beyond(
    reference: Array, served: Array, moved: Sequence[Array], relative_floor: float
) -> Band | None:
    """The band that is furthest beyond what it may be off, or None.

    A band may be off by the largest of three: `relative_floor` of its own size; `LOCAL_MARGIN x (1 + FEW_ELEMENTS /
    sqrt n)` times what moving all numbers to their neighbours makes of these very elements; and `NOISE_MARGIN`
    roundings of the largest element, which is what kernels that approximate a function leave out at its flat end.

    reference, served: Results of one shape and dtype, finite at the same places.
    moved: What the reference gives with its numbers moved.
    relative_floor: What rounds in an operator of which nothing is known, relative to the size of its result.
    """
    kept = np.isfinite(reference) & np.isfinite(served)
    for one in moved:
        kept &= np.isfinite(one)
    truth = reference[kept].astype("f8")
    off = np.abs(served[kept].astype("f8") - truth)
    noises = [np.abs(one[kept].astype("f8") - truth) for one in moved]
    largest = float(np.abs(truth).max(initial=0.0))
    left_out = NOISE_MARGIN * float(np.finfo(reference.dtype).eps) / 2 * largest
    found = []
    for at in _bands(truth):
        few = LOCAL_MARGIN * (1 + FEW_ELEMENTS / math.sqrt(at.size))
        noise = max((_root_mean_square(one[at]) for one in noises), default=0.0)
        size = _root_mean_square(truth[at])
        tolerance = max(relative_floor * size, few * noise, left_out)
        difference = _root_mean_square(off[at])
        if difference > tolerance:
            found.append(Band(size, difference, tolerance))
    return max(found, key=lambda one: one.difference / one.tolerance, default=None)


def _bands(truth: Array) -> Iterator[Array]:
    """Places of the elements of each band, the largest first."""
    order = np.argsort(-np.abs(truth), kind="stable")
    exponents = np.frexp(truth[order])[1]
    exponents[truth[order] == 0] = np.iinfo(exponents.dtype).min
    begin = 0
    while begin < order.size:
        end = int(np.searchsorted(-exponents, _BAND - int(exponents[begin]), side="left"))
        end = min(max(end, begin + _FEWEST), order.size)
        if order.size - end < _FEWEST:
            end = order.size
        yield order[begin:end]
        begin = end


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
