"""Find a simple pattern in an error: a constant, one per row or column, a factor, few elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep.core.records import Array
from lockstep.wings.report.comparison_types import ErrorPattern, Floats

CLEAR = 0.9
"""Share of the squared error from which on a thing is said to explain it: it leaves a third of the error's norm at
most."""

_UNLIKELY = math.log(1e9)
"""Evidence that a sentence needs: random errors show as clear a pattern in less than one of 1e9 tensors."""

_SIMPLER = 2.0
"""A simpler thing is named where it leaves at most so many times what the best one leaves of the squared error."""

_FEW = 0.01
"""The share of the elements that `largest` is about."""

_FEWEST = 20
"""Elements that a pattern is looked for in at least."""

_MOST_COLUMNS = 1 << 22
"""Columns whose sums are kept, 64 MB."""

_SHIFT = 47
"""Bits of a double that are left out where squares are told apart: five of the significand stay, within 3 %."""

_SIZES = 1 << (63 - _SHIFT)


class ErrorSums:
    r"""Sums over the errors `e` of one pair, from which every share follows; memory is that of its columns.

    With `r` the reference and all sums over the `n` elements where both are finite, what is explained by least squares
    (Björck, Numerical Methods for Least Squares Problems, 1996, section 1.1) is

    ============  =========================================================
    `constant`    `|sum e|^2 / (n sum |e|^2)`
    `rows`        `sum over rows |sum over the row e|^2 / (m sum |e|^2)`, `m` the elements of a row
    `columns`     the same with columns, the indices of the last axis
    `factor`      `|sum r* e|^2 / (sum |r|^2 sum |e|^2)`, of `e = a r`
    `largest`     squares of the largest 1 % of `|e|`, at least one element, over `sum |e|^2`
    ============  =========================================================

    Elements that are not finite count as errors of 0, by which rows and columns explain rather less.

    shape: Of the reference. Rows are what all axes but the last make.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._columns = shape[-1] if shape else 1
        self._rows = math.prod(shape[:-1])
        self.count = 0
        self._sum = self._product = complex(0)
        self._squares = self._fourths = self._reference_squares = 0.0
        self._row, self._row_squares = complex(0), 0.0
        kept = 1 < self._columns <= _MOST_COLUMNS and self._rows > 1
        self._column_sums = np.zeros(self._columns if kept else 0, np.complex128)
        self._sizes = np.zeros((3, _SIZES))

    def add(self, start: int, reference: Array, error: Array) -> None:
        """Add the errors of some elements; blocks come in row-major order.

        start: Number of the first element.
        reference, error: Float64 or complex128; NaN errors are left out.
        """
        if not error.size:
            return
        finite = np.isfinite(error) & np.isfinite(reference)
        self.count += int(np.count_nonzero(finite))
        if not finite.all():
            reference, error = np.where(finite, reference, 0), np.where(finite, error, 0)
        with np.errstate(all="ignore"):
            squares = np.abs(error) ** 2
            self._sum += complex(error.sum())
            self._product += complex((np.conj(reference) * error).sum())
            self._squares += float(squares.sum())
            self._fourths += float((squares * squares).sum())
            reference_squares = np.abs(reference) ** 2
            self._reference_squares += float(reference_squares.sum())
            self._add_rows(start, error)
            if self._column_sums.size:
                self._add_columns(start, error)
            self._add_sizes(squares, reference_squares)

    def _add_rows(self, start: int, error: Array) -> None:
        """Add up each row, of which a block may hold the end, the middle or the beginning."""
        edges = np.arange(-(start % self._columns), error.size, self._columns)
        starts = np.maximum(edges, 0)
        sums = np.add.reduceat(error, starts).astype(np.complex128)
        sums[0] += self._row
        ends = start + error.size
        done = sums if ends % self._columns == 0 else sums[:-1]
        self._row_squares += float((np.abs(done) ** 2).sum())
        self._row = complex(0) if done.size == sums.size else complex(sums[-1])

    def _add_columns(self, start: int, error: Array) -> None:
        width = self._columns
        first = start % width
        head = min(width - first, error.size)
        self._column_sums[first : first + head] += error[:head]
        whole = (error.size - head) // width
        if whole:
            self._column_sums += (
                error[head : head + whole * width].reshape(whole, width).sum(axis=0)
            )
        rest = error[head + whole * width :]
        self._column_sums[: rest.size] += rest

    def _add_sizes(self, squares: Floats, reference_squares: Floats) -> None:
        """Sort squares into bins by their size, with those of the reference at the same elements."""
        places = squares.view(np.int64) >> _SHIFT
        for row, weights in enumerate((None, squares, reference_squares)):
            self._sizes[row] += np.bincount(places, weights, _SIZES)

    def pattern(self, *, beyond_noise: bool) -> ErrorPattern:
        """The shares, and the sentence where one is clear.

        beyond_noise: Whether the pair is further apart than its noise floor; of noise nothing is said.
        """
        if not 0 < self._squares < math.inf:
            return ErrorPattern(math.nan, math.nan, math.nan, math.nan, math.nan, "")
        models = self._models()
        largest, of_reference, few = self._largest()
        shares = {one.name: one.share for one in models}
        sentence = ""
        if beyond_noise and self.count >= _FEWEST:
            sentence = self._sentence(models) or self._few_words(largest, of_reference, few)
        return ErrorPattern(
            shares["constant"],
            shares["rows"],
            shares["columns"],
            shares["factor"],
            largest,
            sentence,
        )

    def _models(self) -> list[_Model]:
        """What may explain the error, simplest first."""
        total, count = self._squares, max(self.count, 1)
        constant = abs(self._sum) ** 2 / count / total
        factor = _ratio(abs(self._product) ** 2 / total, self._reference_squares)
        several = self._rows > 1 and self._columns > 1
        rows = self._row_squares / self._columns / total if several else math.nan
        by_column = (np.abs(self._column_sums) ** 2).sum() / max(self._rows, 1) / total
        columns = float(by_column) if self._column_sums.size else math.nan
        return [
            _Model("constant", _share(constant), 1, self._constant_words),
            _Model("factor", _share(factor), 1, self._factor_words),
            _Model("rows", _share(rows), self._rows, lambda: _ROWS),
            _Model("columns", _share(columns), self._columns, lambda: _COLUMNS),
        ]

    def _sentence(self, models: list[_Model]) -> str:
        clear = [one for one in models if one.share >= CLEAR and self._is_evident(one)]
        if not clear:
            return ""
        least = min(1 - one.share for one in clear)
        named = next(one for one in clear if 1 - one.share <= _SIMPLER * least + 1e-12)
        return f"{named.words()}: that explains {percent(named.share)} of the squared error"

    def _is_evident(self, model: _Model) -> bool:
        return evidence(self._effective, self._count_in_effect(model.parameters), model.share) > (
            _UNLIKELY
        )

    @property
    def _effective(self) -> float:
        """Elements that carry the error, `(sum e^2)^2 / sum e^4`: where few are large, the others tell nothing."""
        return min(float(self.count), _ratio(self._squares**2, self._fourths))

    def _count_in_effect(self, parameters: int) -> float:
        return max(1.0, parameters * self._effective / max(self.count, 1))

    def _constant_words(self) -> str:
        mean = self._sum / max(self.count, 1)
        number = f"{mean.real:.4g}" if mean.imag == 0 else f"{mean:.4g}"
        return f"every element is off by the same number, {number}"

    def _factor_words(self) -> str:
        times = 1 + self._product / self._reference_squares
        number = f"{times.real:.6g}" if times.imag == 0 else f"{times:.6g}"
        return f"the candidate is the reference times {number}"

    def _largest(self) -> tuple[float, float, int]:
        """Share of the squared error in the largest 1 % of the elements, of the reference's squares there; how many.

        Squares of one bin, which are within 3 % of each other, are taken as equal.
        """
        few = max(1, int(_FEW * self.count))
        counts = self._sizes[0][::-1]
        taken = np.clip(few - (np.cumsum(counts) - counts), 0, counts)
        parts = np.divide(taken, counts, out=np.zeros_like(taken), where=counts > 0)
        squares, reference = ((self._sizes[row][::-1] * parts).sum() for row in (1, 2))
        of_reference = _share(_ratio(float(reference), self._reference_squares))
        return _share(float(squares) / self._squares), of_reference, few

    def _few_words(self, share: float, of_reference: float, few: int) -> str:
        """Few elements hold the error, and it is not there alone that the reference is anything."""
        n = float(self.count)
        ways = math.lgamma(n + 1) - math.lgamma(few + 1) - math.lgamma(n - few + 1)
        if share < CLEAR or of_reference > _FEW_HOLD or evidence(n, few, share) < ways + _UNLIKELY:
            return ""
        what = "one element holds" if few == 1 else f"{few} elements hold"
        return f"{what} {percent(share)} of the squared error, of {self.count} elements"


_FEW_HOLD = 0.5
"""Where the elements with the error hold more of the reference's own squares, they are merely its largest."""

_ROWS = "all elements of a row (of the last axis) are off by the same number, each row by its own"
_COLUMNS = (
    "all elements at one index of the last axis are off by the same number, each index by its own"
)


@dataclass(frozen=True, slots=True)
class _Model:
    """One thing that may explain an error: what share, by how many numbers, and how that is said."""

    name: str
    share: float
    parameters: int
    words: Callable[[], str]


def evidence(count: float, parameters: float, share: float) -> float:
    r"""How unlikely it is that random errors show a share as large, as minus the natural logarithm of a bound.

    What `p` parameters explain of `n` independent normal errors is `Beta(p/2, (n-p)/2)`, and by Chernoff's bound
    `P(B >= s) <= exp(-n/2 KL(p/n || s))` with the binary relative entropy, for s beyond the mean (Dasgupta and Gupta,
    An elementary proof of a theorem of Johnson and Lindenstrauss, 2003, lemma 2.2).

    >>> evidence(1000, 10, 0.9) > 1000
    True
    >>> evidence(8, 4, 0.5)
    0.0
    """
    expected, share = parameters / count if count > 0 else 1.0, min(share, 1 - 1e-12)
    if not expected < share:
        return 0.0
    entropy = expected * math.log(expected / share)
    entropy += (1 - expected) * math.log((1 - expected) / (1 - share))
    return count / 2 * entropy


def percent(share: float) -> str:
    """A share in words; 100 % is said of what leaves nothing."""
    return f"{math.floor(1e4 * share + 1e-9) / 100:g} %"


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0


def _share(value: float) -> float:
    return value if math.isnan(value) else min(1.0, max(0.0, value))
