"""The same elements in a different order of axes: NCHW and NHWC, or a weight that is kept transposed.

A sketch depends on the order of elements, so two layouts of one tensor can be held against each
other exactly only where both were saved whole. Elsewhere norm, mean, extremes and the number of
zeros, which no order changes, decide; that they are equal says that the elements may be the same,
and no more. Activations of equal shape are never taken for two layouts: a tensor that is transposed by
mistake looks just like that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Axes, Evidence, Metrics
from lockstep.core.records import Array, Content
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.measure.metrics import measure, measure_statistics, measure_tensors

TRANSPOSED: Axes = (1, 0)

IN_ROW_ORDER: Axes = ()
"""The layout of two shapes of one sequence of elements, as views give them: each element faces the one at its place
in row-major order."""

_SAME_SEQUENCE = 0.05
"""Relative distance up to which two sequences of elements are one: two that are not are as far apart as they are
large. Within it they are measured and judged as any two tensors are."""

_NEAR = 64.0
"""Unit roundoffs that statistics of equal elements may be off, relative to their size."""

_MAX_ORDERS = 24
"""Orders of axes that whole tensors are tried in."""


def keeps_order(layout: Axes | None) -> bool:
    """Whether the elements of two tensors stand in one order, whatever their extents are: each faces its own."""
    return layout is None or layout == tuple(range(len(layout)))


def other_layout(
    reference: Content, candidate: Content, *, known: Collection[Axes] = ()
) -> Axes | None:
    """Order of the reference's axes in the candidate, extents of 1 left out.

    Parameters
    ----------
    reference, candidate
        Two contents of different shapes.
    known
        Orders met elsewhere in the same step: taken where the shapes fit, whatever is inside.

    Returns
    -------
    tuple of int or None
        None where the shapes are no reordering of each other or the elements are not the same. The
        natural order `(0, 1, ...)` says that just extents of 1 differ.

    Examples
    --------
    >>> other_layout(Content(0, "float32", (2, 3, 4), "cpu", None, None),
    ...              Content(0, "float32", (2, 4, 3), "cpu", None, None), known={(0, 2, 1)})
    (0, 2, 1)
    """
    if reference.shape == candidate.shape:
        return None
    orders = list(itertools.islice(_orders(_extents(reference), _extents(candidate)), _MAX_ORDERS))
    if not orders:
        return None
    if not holds_the_same(reference, candidate):
        return next((axes for axes in orders if axes in known), None)
    left, right = _elements(reference), _elements(candidate)
    if len(orders) == 1 or left is None or right is None:
        return orders[0]
    return min(orders, key=lambda axes: (_distance(_reordered(left, axes), right), axes))


def is_one_sequence(reference: Content, candidate: Content) -> bool:
    """Whether two contents of different shapes hold the same elements in row-major order, but for noise.

    Sketches and digests depend on the order alone. Where neither is there, as many numbers as do not depend on it are
    compared.
    """
    if reference.shape == candidate.shape or reference.numel != candidate.numel:
        return False
    if reference.digest is not None and reference.digest == candidate.digest:
        return reference.dtype == candidate.dtype
    if not (is_floating(reference.dtype) and is_floating(candidate.dtype)):
        return False
    whole = reference.sketch_loader is None or candidate.sketch_loader is None
    with np.errstate(invalid="ignore", over="ignore"):
        metrics = measure(reference, candidate, read_tensors=whole)
    if metrics.evidence is Evidence.STATISTICS:
        return holds_the_same(reference, candidate)
    return metrics.rel_l2 <= _SAME_SEQUENCE


def may_be_transposed(reference: Content, candidate: Content) -> bool:
    """Whether two square matrices of different contents may be each other's transpose."""
    shape = _extents(reference)
    return (
        len(shape) == 2
        and shape[0] == shape[1]
        and shape == _extents(candidate)
        and reference.digest != candidate.digest
        and holds_the_same(reference, candidate)
    )


def is_transposed(reference: Content, candidate: Content, *, otherwise: bool) -> bool:
    """Whether whole matrices are each other's transpose; `otherwise` where they were not saved."""
    left, right = _elements(reference), _elements(candidate)
    if left is None or right is None:
        return otherwise
    near = _NEAR * max(unit_roundoff(reference.dtype), unit_roundoff(candidate.dtype))
    return _distance(_reordered(left, TRANSPOSED), right) <= near * float(np.linalg.norm(right))


def is_nearer_in(axes: Axes, reference: Content, candidate: Content) -> bool:
    """Whether whole tensors of one shape are nearer to each other in this order of axes than as they are."""
    left, right = _elements(reference), _elements(candidate)
    if left is None or right is None or reference.digest == candidate.digest:
        return False
    return _distance(_reordered(left, axes), right) < _distance(left, right)


def measure_layouts(
    reference: Content, candidate: Content, axes: Axes, *, read_tensors: bool
) -> Metrics:
    """Measure two layouts of one tensor.

    Whole tensors, and sketches of so few elements that they are these, are put into one order; where elements stand in
    one order already every evidence counts; else statistics alone are compared.
    """
    if axes == tuple(range(len(axes))):
        return measure(reference, candidate, read_tensors=read_tensors)
    left, right = (_elements(one, read_tensors=read_tensors) for one in (reference, candidate))
    if left is not None and right is not None:
        dtype = max(reference.dtype, candidate.dtype, key=unit_roundoff)
        metrics = measure_tensors(_reordered(left, axes), np.asarray(right), dtype=dtype)
        whole = read_tensors and reference.loader is not None and candidate.loader is not None
        return metrics if whole else replace(metrics, evidence=Evidence.SKETCH)
    if reference.statistics is None or candidate.statistics is None:
        return Metrics(Evidence.NONE)
    return measure_statistics(reference, candidate)


def _elements(content: Content, *, read_tensors: bool = True) -> Array | None:
    """All elements where they were kept: as a tensor, or as the sketch of a few; None elsewhere."""
    if read_tensors and content.loader is not None:
        return content.load()
    sketch = content.sketch if 0 < content.numel <= SKETCH_SIZE else None
    return None if sketch is None else sketch[: content.numel].reshape(content.shape)


def _extents(content: Content) -> tuple[int, ...]:
    return tuple(extent for extent in content.shape if extent != 1)


def _orders(left: tuple[int, ...], right: tuple[int, ...]) -> Iterator[Axes]:
    """Orders of axes that make one shape of the other."""
    if sorted(left) != sorted(right):
        return
    choices = [[axis for axis, extent in enumerate(left) if extent == wanted] for wanted in right]
    for axes in itertools.product(*choices):
        if len(set(axes)) == len(axes):
            yield axes


def holds_the_same(reference: Content, candidate: Content) -> bool:
    """Whether all numbers that do not depend on an order are equal up to rounding."""
    if reference.digest is not None and reference.digest == candidate.digest:
        return True
    left, right = reference.statistics, candidate.statistics
    if left is None or right is None:
        return False
    near = _NEAR * max(unit_roundoff(reference.dtype), unit_roundoff(candidate.dtype))
    peak = max(abs(left.minimum), abs(left.maximum))
    # A mean near zero is as uncertain as the elements are large.
    spread = left.norm / math.sqrt(max(1, reference.numel))
    return (
        (left.nan_count, left.inf_count) == (right.nan_count, right.inf_count)
        and abs(left.norm - right.norm) <= near * left.norm
        and abs(left.mean - right.mean) <= near * spread
        and abs(left.minimum - right.minimum) <= near * peak
        and abs(left.maximum - right.maximum) <= near * peak
    )


def _reordered(array: Array, axes: Axes) -> Array:
    return np.asarray(array).reshape([n for n in array.shape if n != 1]).transpose(axes)


def _distance(left: Array, right: Array) -> float:
    difference = left.astype(np.float64) - np.asarray(right).reshape(left.shape)
    return float(np.linalg.norm(difference))
