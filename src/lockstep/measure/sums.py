"""One pass over two tensors, block by block, in double precision and constant memory.

The formulae and what happens to zeros and non-finite numbers stand at `lockstep.measure.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.core.finding import Evidence, Metrics
from lockstep.core.records import PIECE, Array, Pieces
from lockstep.kernels.pair_sums import ADDED, COUNTED, COUNTS, MAXIMA, SUMS

BLOCK_ELEMENTS = PIECE
"""Elements of one block: its temporary arrays of doubles stay within a processor's caches."""

_SQUARE_LIMIT_EXPONENT = 400
_VANISHED_SHARE = 2.0**-24
_TINY, _HUGE = 2.0**-1022, 2.0**1023
ULP_PARTS = {
    "float64": ("f8", "i8"),
    "complex128": ("f8", "i8"),
    "float32": ("f4", "i4"),
    "complex64": ("f4", "i4"),
    "bfloat16": ("f4", "i4"),
    "float16": ("f2", "i2"),
}

_MEAN, _COMPARED = SUMS.index("mean"), COUNTS.index("compared")

Doubles = npt.NDArray[np.float64]


class Sums:
    """The sums of one pass; every sum is of numbers scaled by `2**-exponent`."""

    def __init__(self, dtype: str, exponent: int) -> None:
        self.dtype = dtype
        self.exponent = exponent
        self.elements = self.compared = self.nan_mismatch = self.inf_mismatch = 0
        self.dot = self.reference_squares = self.candidate_squares = self.squares = 0.0
        self.difference = self.reference = self.candidate = 0.0
        self.scatter, self.mean = 0.0, complex(0)
        self.max_abs = self.max_relative = self.relative = 0.0
        self.relative_elements = self.within_1e_3 = self.within_5e_3 = 0
        self.divergence = _DivergenceSums()
        self.max_ulp = 0.0 if dtype in ULP_PARTS else math.nan

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one block of each side, contiguous and of equal length."""
        self.elements += reference.size
        reference, candidate = self._comparable(*common_integers(reference, candidate))
        if not reference.size:
            return
        left, right = doubles_of(reference, self.exponent), doubles_of(candidate, self.exponent)
        difference = difference_of(reference, candidate, left, right)
        self._add_products(left, right)
        self._add_scatter(difference)
        reference_sizes, sizes = np.abs(left), np.abs(difference)
        self._add_errors(reference_sizes, sizes)
        self.candidate += self.divergence.add(reference_sizes, np.abs(right))
        if self.dtype in ULP_PARTS:
            self.max_ulp = max(self.max_ulp, _max_ulp(reference, candidate, self.dtype))

    def merge(self, elements: int, sums: Doubles, counts: npt.NDArray[np.int64]) -> None:
        """Add the sums of compiled passes over later elements.

        elements: How many there are.
        sums, counts: A row for each chunk, columns as in `lockstep.kernels.pair_sums`.
        """
        self.elements += elements
        names, rows = (*SUMS, *COUNTS), (*sums.sum(axis=0).tolist(), *counts.sum(axis=0).tolist())
        found = dict(zip(names, rows, strict=True))
        if found[
            "compared"
        ]:  # Chan, Golub and LeVeque (1979), equation 2.1, for many parts at once
            weights, means = counts[:, _COMPARED], sums[:, _MEAN]
            mean = float((weights * means).sum()) / found["compared"]
            scatter = found["scatter"] + float((weights * (means - mean) ** 2).sum())
            self._merge_scatter(found["compared"], mean, scatter)
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + found[name])
        for name in ADDED:
            owner = self.divergence if hasattr(self.divergence, name) else self
            setattr(owner, name, getattr(owner, name) + found[name])
        largest = dict(zip(SUMS, sums.max(axis=0).tolist(), strict=True))
        for name in MAXIMA:
            if name != "max_ulp" or self.dtype in ULP_PARTS:
                setattr(self, name, max(getattr(self, name), largest[name]))

    def _comparable(self, reference: Array, candidate: Array) -> tuple[Array, Array]:
        """Take mismatching non-finite positions out, and count them; equal ones become 0."""
        if reference.dtype.kind not in "fc" and candidate.dtype.kind not in "fc":
            return reference, candidate
        finite = np.isfinite(reference) & np.isfinite(candidate)
        if finite.all():
            return reference, candidate
        left_nan, right_nan = np.isnan(reference), np.isnan(candidate)
        nan_mismatch = left_nan != right_nan
        equal = (reference == candidate) | (left_nan & right_nan)
        inf_mismatch = ~finite & ~equal & ~nan_mismatch
        self.nan_mismatch += int(np.count_nonzero(nan_mismatch))
        self.inf_mismatch += int(np.count_nonzero(inf_mismatch))
        kept = finite | equal
        zeroed = [
            np.where(finite, block, np.zeros_like(block))[kept] for block in (reference, candidate)
        ]
        return zeroed[0], zeroed[1]

    def _add_products(self, left: Array, right: Array) -> None:
        self.dot += _dot(left, right)
        self.reference_squares += _dot(left, left)
        self.candidate_squares += _dot(right, right)

    def _add_scatter(self, difference: Array) -> None:
        mean = complex(difference.mean())
        centred = difference - (mean if difference.dtype.kind == "c" else mean.real)
        self._merge_scatter(difference.size, mean, _dot(centred, centred))
        self.squares += _dot(difference, difference)

    def _merge_scatter(self, added: int, mean: complex, scatter: float) -> None:
        """Merge mean and scatter (Chan, Golub and LeVeque, 1979, equation 2.1), and count."""
        before = self.compared
        self.compared += added
        share, shift = added / self.compared, mean - self.mean
        self.scatter += scatter + abs(shift) ** 2 * before * share
        self.mean += shift * share

    def _add_errors(self, reference: Doubles, sizes: Doubles) -> None:
        self.difference += float(sizes.sum())
        self.reference += float(reference.sum())
        self.max_abs = max(self.max_abs, float(sizes.max()))
        relative = np.divide(sizes, reference, out=np.zeros_like(sizes), where=reference > 0)
        self.max_relative = max(self.max_relative, float(relative.max()))
        self.relative += float(relative.sum())
        undefined = (reference == 0) & (sizes > 0)
        self.relative_elements += sizes.size - int(np.count_nonzero(undefined))
        self.within_1e_3 += int(np.count_nonzero(sizes <= 1e-3 * reference))
        self.within_5e_3 += int(np.count_nonzero(sizes <= 5e-3 * reference))

    def metrics(self) -> Metrics:
        """All numbers, in the unit of the tensors."""
        mismatches = {"nan_mismatch": self.nan_mismatch, "inf_mismatch": self.inf_mismatch}
        if self.elements and not self.compared:
            return Metrics(Evidence.TENSORS, within_1e_3=0.0, within_5e_3=0.0, **mismatches)
        count, elements = max(1, self.compared), self.elements or 1
        relative_known = self.relative_elements or not self.elements
        return Metrics(
            evidence=Evidence.TENSORS,
            cosine=self._cosine(),
            max_abs=self._unscaled(self.max_abs),
            accumulated_relative=ratio_of(self.difference, self.reference),
            rel_l2=ratio_of(math.sqrt(self.squares), math.sqrt(self.reference_squares)),
            kl_divergence=self.divergence.total(self.reference, self.candidate, count),
            standard_deviation=self._unscaled(math.sqrt(self.scatter / count)),
            mean_abs=self._unscaled(self.difference / count),
            rmse=self._unscaled(math.sqrt(self.squares / count)),
            max_relative=self.max_relative if relative_known else math.inf,
            mean_relative=ratio_of(self.relative, self.relative_elements)
            if relative_known
            else math.inf,
            max_ulp=self.max_ulp,
            within_1e_3=self.within_1e_3 / elements if self.elements else 1.0,
            within_5e_3=self.within_5e_3 / elements if self.elements else 1.0,
            **mismatches,
        )

    def _cosine(self) -> float:
        norms = math.sqrt(self.reference_squares) * math.sqrt(self.candidate_squares)
        if norms > 0:
            return clipped_cosine(self.dot / norms)
        return 1.0 if self.reference_squares == self.candidate_squares else 0.0

    def _unscaled(self, value: float) -> float:
        return float(np.ldexp(value, self.exponent))


@dataclass(slots=True)
class _DivergenceSums:
    """The parts of the Kullback-Leibler divergence that need no total beforehand."""

    logarithms: float = 0.0
    vanished: float = 0.0
    vanished_logarithms: float = 0.0

    def add(self, reference: Doubles, candidate: Doubles) -> float:
        """Add one block of magnitudes; returns the sum of the candidate's."""
        both = (reference > 0) & (candidate > 0)
        ratio = np.divide(reference, candidate, out=np.ones_like(reference), where=both)
        self.logarithms += float((reference * np.log(np.clip(ratio, _TINY, _HUGE))).sum())
        lost = reference[(reference > 0) & ~both]
        if lost.size:
            self.vanished += float(lost.sum())
            self.vanished_logarithms += float((lost * np.log(lost)).sum())
        return float(candidate.sum())

    def total(self, reference: float, candidate: float, count: int) -> float:
        """The divergence in nats, given the sums of all magnitudes."""
        if reference == 0 or candidate == 0:
            return 0.0 if reference == candidate else math.inf
        lost = self.vanished / reference
        kept = self.logarithms / reference
        kept += (1 - lost) * (math.log(candidate) - math.log(reference))
        floor = math.log(_VANISHED_SHARE) - math.log(count)
        gone = self.vanished_logarithms / reference - lost * (math.log(reference) + floor)
        return max(0.0, kept + gone)


def blocks(side: Pieces) -> Iterator[Array]:
    """Contiguous row-major blocks."""
    for start in range(0, side.size, BLOCK_ELEMENTS):
        yield side.part(start, min(start + BLOCK_ELEMENTS, side.size))


def common_exponent(reference: Pieces, candidate: Pieces) -> int:
    """Power of two to take out of both sides, so that no square leaves the range of a double.

    Only doubles can be that large or small: it is 0, without reading anything, for all others.
    Elements more than `2**540` times smaller than the largest one count as zero in the norms.
    """
    if not any(side.dtype in (np.float64, np.complex128) for side in (reference, candidate)):
        return 0
    peak = max(
        (_peak(block) for side in (reference, candidate) for block in blocks(side)), default=0
    )
    exponent = math.frexp(peak)[1]
    if peak == 0 or abs(exponent) <= _SQUARE_LIMIT_EXPONENT:
        return 0
    return exponent - _SQUARE_LIMIT_EXPONENT


def _peak(block: Array) -> float:
    parts = block.view(block.real.dtype) if block.dtype.kind == "c" else block
    sizes = np.abs(parts.astype(np.float64))
    return float(sizes.max(initial=0.0, where=np.isfinite(sizes)))


def common_integers(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Give integers of different widths one dtype, where one holds both."""
    if reference.dtype == candidate.dtype or not _are_integers(reference, candidate):
        return reference, candidate
    common = np.result_type(reference, candidate)
    return reference.astype(common), candidate.astype(common)


def _are_integers(reference: Array, candidate: Array) -> bool:
    return reference.dtype.kind in "iu" and candidate.dtype.kind in "iu"


def doubles_of(block: Array, exponent: int) -> Array:
    """The same numbers in double precision, times `2**-exponent`."""
    wide = block.astype(np.complex128 if block.dtype.kind == "c" else np.float64, copy=False)
    if exponent == 0:
        return wide
    return np.ldexp(wide.view(np.float64), -exponent).view(wide.dtype)


def difference_of(reference: Array, candidate: Array, left: Array, right: Array) -> Array:
    """Candidate minus reference, given both in double precision too; of 64-bit integers rounded once."""
    if _are_integers(reference, candidate) and reference.dtype.itemsize == 8:
        return integer_difference(reference, candidate)
    return right - left


def integer_difference(reference: Array, candidate: Array) -> Doubles:
    """Difference of 64-bit integers without overflow, rounded to double once at the end."""
    larger = candidate >= reference
    left, right = reference.view(np.uint64), candidate.view(np.uint64)
    sizes = np.where(larger, right - left, left - right).astype(np.float64)
    return np.where(larger, sizes, -sizes)


def _dot(left: Array, right: Array) -> float:
    """Real part of the Hermitian product, by pairwise summation whatever the thread count."""
    if left.dtype.kind == "c" or right.dtype.kind == "c":
        return float((left.real * right.real + left.imag * right.imag).sum())
    return float((left * right).sum())


def _max_ulp(reference: Array, candidate: Array, dtype: str) -> float:
    left, right = ordinals(reference, dtype), ordinals(candidate, dtype)
    if left.size != right.size:  # a real tensor facing a complex one has no common grid
        return math.nan
    return float(np.abs(integer_difference(left, right)).max(initial=0.0))


def ordinals(block: Array, dtype: str) -> npt.NDArray[np.int64]:
    """Places of numbers in the ordered list of all numbers of the dtype, zero at 0."""
    floating, integer = ULP_PARTS[dtype]
    parts = block.view(block.real.dtype) if block.dtype.kind == "c" else block
    bits = parts.astype(floating, copy=False).view(integer)
    sizes = (bits & np.iinfo(integer).max).astype(np.int64)
    if dtype == "bfloat16":  # the upper half of a float32, rounded to nearest even
        sizes = (sizes + 0x7FFF + ((sizes >> 16) & 1)) >> 16
    return np.where(bits < 0, -sizes, sizes)


def ratio_of(numerator: float, denominator: float) -> float:
    """Ratio of two sums of magnitudes: 0 / 0 is 0, anything else over 0 infinite."""
    if denominator == 0:
        return math.inf if numerator > 0 else numerator
    return numerator / denominator


def clipped_cosine(value: float) -> float:
    """A cosine held inside [-1, 1], where rounding may have left it; NaN stays."""
    return value if math.isnan(value) else min(1.0, max(-1.0, value))
