"""Pictures of how two whole tensors differ, each gathered block by block: memory does not grow with the tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.core.dtypes import is_floating
from lockstep.core.finding import Pair
from lockstep.core.records import Array
from lockstep.measure.facing_elements import Block, facing_blocks, spacing, ulps_apart
from lockstep.measure.metrics import common_dtype
from lockstep.reading.sampled_values import BINS, histogram_edges, sizes_or_values
from lockstep.wings.report.comparison_types import (
    ErrorPattern,
    Floats,
    HeatMap,
    Histogram,
    Quantiles,
    UlpCounts,
    WorstElement,
)
from lockstep.wings.report.error_pattern import ErrorSums

QUANTILES = 128
MOST_ROWS, MOST_COLUMNS = 128, 64
WORST = 12

_SAMPLED = 1 << 16
"""Elements of which quantiles are taken; of more, as many at random places."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of one pair's whole tensors; see `lockstep.wings.report.comparison_types`."""

    histogram: Histogram | None
    quantiles: Quantiles | None
    ulp: UlpCounts | None
    heat_map: HeatMap
    worst: tuple[WorstElement, ...]
    pattern: ErrorPattern


def pictures_of(pair: Pair, *, beyond_noise: bool) -> Pictures:
    """Read both tensors of a pair and gather its pictures.

    pair: Whole tensors for which `lockstep.measure.facing_elements.can_face` holds.
    beyond_noise: Whether the pair is further apart than its noise floor; else no pattern of the error is put into
        words.

    Raises CorruptError if a tensor's file is damaged.
    """
    left, right = pair.contents
    dtype, shape = common_dtype(left, right), left.shape
    edges = histogram_edges(left, right)
    histogram, heat = HistogramCounts(edges), HeatCells(shape)
    ulps, worst, sums = UlpTally(), WorstElements(shape), ErrorSums(shape)
    sample = ErrorSample(left.numel, dtype)
    for block in facing_blocks(pair):
        histogram.add(block)
        apart = ulps_apart(block, dtype)
        ulps.add(apart)
        heat.add(block)
        worst.add(block, apart)
        sums.add(block.start, _wide(block.reference), block.difference)
        sample.add(block)
    return Pictures(
        histogram.histogram(),
        sample.quantiles(),
        ulps.counts(),
        heat.heat_map(),
        worst.elements(),
        sums.pattern(beyond_noise=beyond_noise),
    )


def _wide(block: Array) -> Array:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64, copy=False)


class HistogramCounts:
    """Counts both sides between common edges; the right edge belongs to the last bin, as in `numpy.histogram`."""

    def __init__(self, edges: Floats | None) -> None:
        self._edges = edges
        self._counts = np.zeros((2, BINS), np.int64)
        self._beside = np.zeros((2, 3), np.int64)

    def add(self, block: Block) -> None:
        """Count some elements."""
        if self._edges is None:
            return
        low, high = self._edges[0], self._edges[-1]
        for side, values in enumerate((block.reference, block.candidate)):
            sizes = sizes_or_values(values)
            finite = sizes[np.isfinite(sizes)]
            self._counts[side] += np.histogram(finite, BINS, (low, high))[0]
            self._beside[side] += (
                np.count_nonzero(finite < low),
                np.count_nonzero(finite > high),
                sizes.size - finite.size,
            )

    def histogram(self) -> Histogram | None:
        """The counts; None where no element is finite."""
        if self._edges is None:
            return None
        below, above, others = ((int(left), int(right)) for left, right in self._beside.T)
        reference, candidate = self._counts
        return Histogram(self._edges, reference, candidate, below, above, others)


class UlpTally:
    """Counts elements by how many numbers of the dtype lie between both, by powers of two."""

    def __init__(self) -> None:
        self._counts = np.zeros(66, np.int64)
        self._others, self._counted = 0, False

    def add(self, apart: Floats | None) -> None:
        """Count some distances in ulp; NaN for what has none, None for a dtype that has none."""
        if apart is None:
            return
        self._counted = True
        known = apart[np.isfinite(apart)]
        self._others += apart.size - known.size
        self._counts += np.bincount(np.frexp(known)[1], minlength=66)

    def counts(self) -> UlpCounts | None:
        """The counts, without empty bins at the end; None where nothing could be counted."""
        if not self._counted:
            return None
        met = np.flatnonzero(self._counts)
        return UlpCounts(self._counts[: met[-1] + 1 if met.size else 1].copy(), self._others)


class HeatCells:
    """The largest error in each cell of a grid over rows (all axes but the last) and columns (the last axis)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._columns = shape[-1] if shape else 1
        self._rows = math.prod(shape[:-1])
        self._grid = min(self._rows, MOST_ROWS), min(self._columns, MOST_COLUMNS)
        cells = self._grid[0] * self._grid[1]
        self._most, self._least = np.zeros(cells), np.zeros(cells)
        self._unknown = np.zeros(cells, np.bool_)

    def add(self, block: Block) -> None:
        """Put some elements into their cells."""
        if not block.difference.size:
            return
        places = np.arange(block.start, block.start + block.difference.size)
        rows, columns = np.divmod(places, self._columns)
        cells = rows * self._grid[0] // self._rows * self._grid[1]
        cells += columns * self._grid[1] // self._columns
        errors = block.difference
        errors = np.abs(errors) if errors.dtype.kind == "c" else errors
        known = np.isfinite(errors)
        self._unknown[cells[~known]] = True
        np.maximum.at(self._most, cells[known], errors[known])
        np.minimum.at(self._least, cells[known], errors[known])

    def heat_map(self) -> HeatMap:
        """The cells, with what their axes are of."""
        signed = np.where(self._most >= -self._least, self._most, self._least)
        signed = np.where(self._unknown, np.nan, signed)
        with np.errstate(over="ignore"):
            values = signed.astype(np.float32).reshape(self._grid)
        outer = "x".join(map(str, self._shape[:-1]))
        return HeatMap(
            values,
            f"axes [{outer}]" if outer else "one row",
            f"last axis [{self._columns}]" if self._shape else "one element",
            self._rows,
            self._columns,
        )


class WorstElements:
    """The elements that are furthest apart; those of which just one side is finite come first."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._sizes: Floats = np.empty(0)
        self._found: list[WorstElement] = []

    def add(self, block: Block, apart: Floats | None) -> None:
        """Look at some elements, with their distances in ulp where there are any."""
        sizes = np.abs(block.difference)
        sizes = np.where(np.isnan(sizes), np.inf, sizes)
        places = np.flatnonzero(sizes > 0)
        if places.size > WORST:
            places = places[np.argpartition(-sizes[places], WORST - 1)[:WORST]]
        new = [self._element(block, int(place), apart) for place in places]
        self._sizes = np.concatenate([self._sizes, sizes[places]])
        self._found += new
        order = np.argsort(-self._sizes, kind="stable")[:WORST]
        self._sizes, self._found = self._sizes[order], [self._found[place] for place in order]

    def _element(self, block: Block, place: int, apart: Floats | None) -> WorstElement:
        index = np.unravel_index(block.start + place, self._shape) if self._shape else ()
        difference = block.difference[place]
        return WorstElement(
            tuple(int(one) for one in index),
            block.reference[place].item(),
            block.candidate[place].item(),
            float(abs(difference)) if block.difference.dtype.kind == "c" else float(difference),
            math.nan if apart is None else float(apart[place]),
        )

    def elements(self) -> tuple[WorstElement, ...]:
        """At most `WORST` of them, the furthest apart first."""
        return tuple(self._found)


class ErrorSample:
    """Errors in ulp, of all elements or of as many at random places as quantiles need.

    size: Elements of the tensor.
    dtype: The coarser one of the two, whose ulp is the unit: the spacing of its numbers at the larger of both values.
    """

    def __init__(self, size: int, dtype: str) -> None:
        self._dtype = dtype
        self._sampled = is_floating(dtype) and not dtype.startswith("complex")
        places = np.arange(size)
        if size > _SAMPLED:
            places = np.sort(np.random.default_rng(0).integers(0, size, _SAMPLED))
        self._places = places if self._sampled else places[:0]
        self._parts: list[Floats] = []

    def add(self, block: Block) -> None:
        """Take those of some elements that are in the sample."""
        stop = block.start + block.difference.size
        first, last = np.searchsorted(self._places, [block.start, stop])
        at = self._places[first:last] - block.start
        errors = block.difference[at]
        if errors.dtype.kind == "c":
            return
        sizes = np.maximum(
            *(np.abs(sizes_or_values(one[at])) for one in (block.reference, block.candidate))
        )
        finite = np.isfinite(errors) & np.isfinite(sizes)
        self._parts.append(errors[finite] / spacing(sizes[finite], self._dtype))

    def quantiles(self) -> Quantiles | None:
        """Quantiles of the errors against those of two roundings; None for what does not round."""
        errors = np.concatenate(self._parts) if self._parts else np.empty(0)
        if not errors.size:
            return None
        count = min(QUANTILES, errors.size)
        shares = (np.arange(count) + 0.5) / count
        return Quantiles(two_roundings(shares), np.quantile(errors, shares))


def two_roundings(shares: npt.ArrayLike) -> Floats:
    r"""Quantiles of the difference of two results that were each rounded once from the same number, in ulp.

    The error of one rounding to nearest is taken as uniform on half an ulp to either side (Widrow and Kollár,
    Quantization Noise, 2008, section 5.2), that of two as their independent difference: triangular on (-1, 1), with
    the quantiles `sqrt(2 p) - 1` and, for `p >= 1/2`, `1 - sqrt(2 (1 - p))`.

    >>> two_roundings([0.125, 0.5, 0.875]).tolist()
    [-0.5, 0.0, 0.5]
    """
    p = np.asarray(shares, dtype=np.float64)
    return np.where(p < 0.5, np.sqrt(2 * p) - 1, 1 - np.sqrt(2 * (1 - p)))
