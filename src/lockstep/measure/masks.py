"""Attention masks: one and the same mask is written as truth values, or as 0 and a number that leaves out."""

from __future__ import annotations

import math

import numpy as np

from lockstep.core.records import Array, Content, Statistics
from lockstep.measure.metrics import are_placed_apart

LEAVES_OUT = -1e4
"""What a mask adds to a score to leave it out is this or below: -1e4 and -65504 in fp16, -1e9, -3.4e38, -inf."""

_SAME = 1e-6
"""Relative difference of a mean up to which all that is not 0 is one number."""

_SAME_SKETCH = 1e-5
"""Relative difference of sketches up to which they are one: two elements of a thousand million left out are more, and
sums in double precision of numbers that are all alike are off by less than a tenth of it."""


def is_same_mask(left: Content, right: Content, *, read_tensors: bool) -> bool:
    """Whether two tensors leave out the same elements, each in its own way.

    Of truth values, either may say what is kept. Where neither whole tensors nor sketches tell, the same number of
    elements is taken for the same ones: what is computed by means of another mask shows.
    """
    if left.shape != right.shape or left.dtype == right.dtype == "bool":
        return False
    one, two = _left_out(left), _left_out(right)
    if one is None or two is None or one.isdisjoint(two) or _infinities_apart(left, right):
        return False
    if not read_tensors or left.loader is None or right.loader is None:
        return _sketches_allow(left, right)
    first, second = _positions(left.load()), _positions(right.load())
    either = "bool" in (left.dtype, right.dtype)
    return bool((first == second).all()) or (either and bool((first != second).all()))


def _infinities_apart(left: Content, right: Content) -> bool:
    """Whether both leave out by an infinity, and at other places."""
    one, two = left.statistics, right.statistics
    return one is not None and two is not None and are_placed_apart(one, two)


def _sketches_allow(left: Content, right: Content) -> bool:
    """Whether two masks may leave out the same elements: divided by the numbers that do, their sketches are one.

    A sketch is linear (`lockstep.core.sketch`), so that of a mask is its number times that of what it leaves out.
    Truth values have none, and one of -inf is empty.
    """
    first, second = _sketch_of_left_out(left), _sketch_of_left_out(right)
    if first is None or second is None:
        return True
    return float(np.linalg.norm(first - second)) <= _SAME_SKETCH * float(np.linalg.norm(first))


def _sketch_of_left_out(content: Content) -> Array | None:
    sketch, statistics = content.sketch, content.statistics
    if sketch is None or statistics is None or statistics.inf_count or not statistics.minimum:
        return None
    return np.asarray(sketch) / statistics.minimum


def _left_out(content: Content) -> frozenset[int] | None:
    """How many elements a mask may leave out; None for what is no mask."""
    statistics = content.statistics
    if statistics is None or statistics.nan_count or not content.numel:
        return None
    if content.dtype == "bool":
        return frozenset({statistics.zero_count, content.numel - statistics.zero_count})
    if not _adds_nothing_else(statistics, content.numel):
        return None
    return frozenset({content.numel - statistics.zero_count})


def _adds_nothing_else(statistics: Statistics, count: int) -> bool:
    """Whether all elements are 0, -inf or one number that leaves out."""
    finite = count - statistics.inf_count
    left_out = finite - statistics.zero_count
    if not finite or not (left_out or statistics.inf_count):
        return False
    if statistics.maximum > 0 or (statistics.inf_count and left_out):
        return False
    if not left_out:
        return statistics.minimum == statistics.maximum == 0
    total = statistics.mean * finite
    lowest = statistics.minimum * left_out
    return statistics.minimum <= LEAVES_OUT and math.isclose(total, lowest, rel_tol=_SAME)


def _positions(values: Array) -> Array:
    """Where a mask leaves out; for truth values, where it is false."""
    return ~values if values.dtype == np.bool_ else values <= LEAVES_OUT
