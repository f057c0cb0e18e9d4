"""All sums for the comparison of two arrays, in one compiled pass; `lockstep.measure.sums` explains their use.

Blocks of both sides go by one after the other, each short enough for a processor's caches, and several plain loops run
over a block, each of which the compiler turns into vector instructions. A maximum of positive numbers is that of their
bit patterns, which the compiler can reorder and which are in the same order. Blocks that are equal bit by bit, or that
hold no zeros, or only finite numbers, need fewer loops.

The logarithm that the Kullback-Leibler divergence needs is written out: a processor's vector unit has none. It takes
`2**e` out of the ratio, so that `1 + u` is left between `sqrt(1/2)` and `sqrt(2)`, and multiplies `u` by a polynomial.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.kernels.fused_formulas import (
    OPERAND,
    Operand,
    evaluate,
    most_double_ulps,
    most_ulps,
    new_table,
)
from lockstep.kernels.jit import compiled, inlined

CHUNK_ELEMENTS = 1 << 16
"""Elements that share one row of sums."""

BLOCK_ELEMENTS = 2048
"""Elements of one block: with its three arrays of doubles it stays in the nearest caches."""

ADDED = (
    "dot", "reference_squares", "candidate_squares", "squares", "difference", "reference", "candidate", "relative",
    "logarithms", "vanished", "vanished_logarithms",
)  # fmt: skip
MAXIMA = ("max_abs", "max_relative", "max_ulp")
SUMS = (*ADDED, *MAXIMA, "scatter", "mean")
"""What the numbers of a chunk are, in order: of several chunks some are added, of others the largest counts."""

COUNTED = ("nan_mismatch", "inf_mismatch", "relative_elements", "within_1e_3", "within_5e_3")
COUNTS = (*COUNTED, "compared")
"""What the counts of a chunk are, in order."""

(
    _DOT, _REFERENCE_SQUARES, _CANDIDATE_SQUARES, _SQUARES, _DIFFERENCE, _REFERENCE, _CANDIDATE, _RELATIVE,
    _LOGARITHMS, _VANISHED, _VANISHED_LOGARITHMS, _MAX_ABS, _MAX_RELATIVE, _MAX_ULP, _SCATTER, _MEAN,
) = range(len(SUMS))  # fmt: skip
_NAN_MISMATCH, _INF_MISMATCH, _RELATIVE_ELEMENTS, _WITHIN_1E_3, _WITHIN_5E_3, _COMPARED = range(
    len(COUNTS)
)

LEAST, LARGEST = 2.0**-400, 2.0**400
"""Doubles of other sizes are refused: squares and reciprocals of these are exact enough."""

_WELL_WITHIN = 0.99e-3
"""Relative error below which an element lies within all shares, however it is rounded."""

_NEAR_ONE = 2.0**-5
"""Change of a ratio up to which seven terms of a series give its logarithm to `2**-38` of itself."""

_LOG_OF_2 = 0.6931471805599453
_ROOT_OF_HALF_BITS = 0x3FE6_A09E_667F_3BCD
_MANTISSA_BITS = 52

# log(1 + u) / u between sqrt(1/2) - 1 and sqrt(2) - 1, interpolated at the 14 Chebyshev nodes: the relative error of
# the logarithm is at most 3e-12 (measured at a million places).
_LOG = (
    0.9999999999980869, -0.49999999992971805, 0.333333334795741, -0.25000002048164394,
    0.1999998295912731, -0.16666490142581625, 0.14286366102434628, -0.12506640703431107,
    0.11102988279786334, -0.09878969810992054, 0.09054505550925004, -0.09342881451966843,
    0.09089754509453518, -0.047177590533593855,
)  # fmt: skip

Numbers = npt.NDArray[Any]


@inlined
def _look(left: Any, left_bits: Any, right_bits: Any, sizes: Any) -> Any:
    """Bits that differ, and of the left side the largest pattern without sign, the sum of squares and that of sizes."""
    differing, peak, squares, total = sizes & 0, sizes & 0, 0.0, 0.0
    for place in range(left.size):
        number = np.float64(left[place])
        differing |= left_bits[place] ^ right_bits[place]
        peak = max(peak, left_bits[place] & sizes)
        squares += number * number
        total += abs(number)
    return differing, peak, squares, total


@inlined
def _look_at_both(left_bits: Any, right_bits: Any, sizes: Any) -> Any:
    """Largest pattern without sign, and how many zeros there are."""
    peak, zeros = sizes & 0, 0
    for place in range(left_bits.size):
        one, two = left_bits[place] & sizes, right_bits[place] & sizes
        peak = max(peak, max(one, two))
        zeros += (one == 0) | (two == 0)
    return peak, zeros


@inlined
def _is_out_of_range(bits: Any, least: Any, largest: Any, infinity: Any) -> bool:
    """Whether a finite number other than zero is too small or too large."""
    outside = 0
    for place in range(bits.size):
        size = bits[place] & 0x7FFF_FFFF_FFFF_FFFF
        outside += (size != 0) & (size < infinity) & ((size < least) | (size > largest))
    return outside > 0


@inlined
def _keep_comparable(
    left: Any, right: Any, kept_left: Any, kept_right: Any, infinity: Any, counts: Any
) -> int:
    """Copy a block without mismatching non-finite numbers, which are counted; equal ones become 0."""
    kept = 0
    for place in range(left.size):
        one, two = np.float64(left[place]), np.float64(right[place])
        if abs(one) < infinity and abs(two) < infinity:
            kept_left[kept], kept_right[kept] = left[place], right[place]
            kept += 1
        elif (one != one) != (two != two):
            counts[_NAN_MISMATCH] += 1
        elif one == two or one != one:
            kept_left[kept] = kept_right[kept] = 0
            kept += 1
        else:
            counts[_INF_MISMATCH] += 1
    return kept


@inlined
def _add_equal(count: int, squares: float, sizes: float, sums: Any, counts: Any) -> None:
    """Add a block whose sides are equal bit by bit."""
    sums[_DOT] += squares
    sums[_REFERENCE_SQUARES] += squares
    sums[_CANDIDATE_SQUARES] += squares
    sums[_REFERENCE] += sizes
    sums[_CANDIDATE] += sizes
    counts[_RELATIVE_ELEMENTS] += count
    counts[_WITHIN_1E_3] += count
    counts[_WITHIN_5E_3] += count
    _merge_scatter(count, 0.0, 0.0, sums, counts)


@inlined
def _merge_scatter(added: int, mean: float, scatter: float, sums: Any, counts: Any) -> None:
    """Merge mean and scatter (Chan, Golub and LeVeque, 1979, equation 2.1), and count the block."""
    before = counts[_COMPARED]
    counts[_COMPARED] = before + added
    share = added / (before + added)
    shift = mean - sums[_MEAN]
    sums[_SCATTER] += scatter + shift * shift * before * share
    sums[_MEAN] += shift * share


@inlined
def _add_products(left: Any, right: Any, difference: Any, sums: Any) -> float:
    """Leaves the differences behind; returns their sum."""
    dot, squares, sizes, total = 0.0, 0.0, 0.0, 0.0
    for place in range(left.size):
        one, two = np.float64(left[place]), np.float64(right[place])
        difference[place] = two - one
        total += two - one
        dot += one * two
        squares += two * two
        sizes += abs(two)
    sums[_DOT] += dot
    sums[_CANDIDATE_SQUARES] += squares
    sums[_CANDIDATE] += sizes
    return total


@inlined
def _add_differences(difference: Any, total: float, sums: Any, counts: Any) -> None:
    mean = total / difference.size
    scatter, squares, sizes, peak = 0.0, 0.0, 0.0, np.int64(0)
    for place in range(difference.size):
        number = difference[place]
        scatter += (number - mean) * (number - mean)
        squares += number * number
        sizes += abs(number)
        peak = max(peak, np.float64(abs(number)).view(np.int64))
    sums[_SQUARES] += squares
    sums[_DIFFERENCE] += sizes
    sums[_MAX_ABS] = max(sums[_MAX_ABS], np.int64(peak).view(np.float64))
    _merge_scatter(difference.size, mean, scatter, sums, counts)


@inlined
def _add_relative(
    left: Any, right: Any, difference: Any, ratio: Any, change: Any, sums: Any, counts: Any
) -> float:
    """Add a block without zeros; leaves the ratios of sizes behind, and how far they are from 1.

    Returns the largest relative error.
    """
    relative, peak = 0.0, np.int64(0)
    for place in range(left.size):
        one, two = abs(np.float64(left[place])), abs(np.float64(right[place]))
        reciprocal = 1.0 / one
        error = abs(difference[place]) * reciprocal
        relative += error
        peak = max(peak, np.float64(error).view(np.int64))
        ratio[place] = two * reciprocal
        change[place] = (two - one) * reciprocal
    largest = np.int64(peak).view(np.float64)
    sums[_RELATIVE] += relative
    sums[_MAX_RELATIVE] = max(sums[_MAX_RELATIVE], largest)
    counts[_RELATIVE_ELEMENTS] += left.size
    if largest < _WELL_WITHIN:
        counts[_WITHIN_1E_3] += left.size
        counts[_WITHIN_5E_3] += left.size
    else:
        _count_within(left, difference, counts)
    return largest


@inlined
def _count_within(left: Any, difference: Any, counts: Any) -> None:
    within_1e_3, within_5e_3 = 0, 0
    for place in range(left.size):
        size, off = abs(np.float64(left[place])), abs(difference[place])
        within_1e_3 += off <= 1e-3 * size
        within_5e_3 += off <= 5e-3 * size
    counts[_WITHIN_1E_3] += within_1e_3
    counts[_WITHIN_5E_3] += within_5e_3


@inlined
def _add_relative_beside_zeros(
    left: Any, right: Any, difference: Any, ratio: Any, change: Any, sums: Any, counts: Any
) -> int:
    """The same with zeros; returns how many numbers face a zero, and leaves 1 as their ratio."""
    relative, peak, undefined, vanished = 0.0, np.int64(0), 0, 0
    for place in range(left.size):
        one, two = abs(np.float64(left[place])), abs(np.float64(right[place]))
        off = abs(difference[place])
        both = (one > 0) & (two > 0)
        reciprocal = 1.0 / one if one > 0 else 0.0
        error = off * reciprocal
        relative += error
        peak = max(peak, np.float64(error).view(np.int64))
        undefined += (one == 0) & (off > 0)
        vanished += (one > 0) & (two == 0)
        ratio[place] = two * reciprocal if both else 1.0
        change[place] = (two - one) * reciprocal if both else 0.0
    sums[_RELATIVE] += relative
    sums[_MAX_RELATIVE] = max(sums[_MAX_RELATIVE], np.int64(peak).view(np.float64))
    counts[_RELATIVE_ELEMENTS] += left.size - undefined
    _count_within(left, difference, counts)
    return vanished


@inlined
def _weighted_logarithms(weights: Any, ratio: Any, change: Any) -> float:
    """Sum of sizes times logarithms of ratios; `change` is the ratio less 1, exact where that is small."""
    total = 0.0
    for place in range(weights.size):
        bits = np.float64(ratio[place]).view(np.int64)
        exponent = (bits - _ROOT_OF_HALF_BITS) >> _MANTISSA_BITS
        mantissa = np.int64(bits - (exponent << _MANTISSA_BITS)).view(np.float64)
        u = change[place] if exponent == 0 else mantissa - 1.0
        high = _LOG[8] + u * (
            _LOG[9] + u * (_LOG[10] + u * (_LOG[11] + u * (_LOG[12] + u * _LOG[13])))
        )
        low = _LOG[4] + u * (_LOG[5] + u * (_LOG[6] + u * (_LOG[7] + u * high)))
        polynomial = _LOG[0] + u * (_LOG[1] + u * (_LOG[2] + u * (_LOG[3] + u * low)))
        total += abs(np.float64(weights[place])) * (
            np.float64(exponent) * _LOG_OF_2 + u * polynomial
        )
    return total


@inlined
def _weighted_near_logarithms(weights: Any, change: Any) -> float:
    """The same where no ratio is further than `_NEAR_ONE` from 1: the first terms of the series."""
    total = 0.0
    for place in range(weights.size):
        u = change[place]
        high = 0.25 + u * (-0.2 + u * (1 / 6 + u * (-1 / 7)))
        polynomial = 1.0 + u * (-0.5 + u * (1 / 3 + u * (-high)))
        total += abs(np.float64(weights[place])) * (u * polynomial)
    return total


@inlined
def _add_vanished(left: Any, right: Any, ratio: Any, change: Any, sums: Any) -> None:
    """Add the numbers that face a zero: their sizes, and these times their logarithms."""
    total = 0.0
    for place in range(left.size):
        size = abs(np.float64(left[place]))
        gone = (size > 0) & (right[place] == 0)
        ratio[place] = size if gone else 1.0
        change[place] = size - 1.0 if gone else 0.0
        total += size if gone else 0.0
    sums[_VANISHED] += total
    sums[_VANISHED_LOGARITHMS] += _weighted_logarithms(left, ratio, change)


@inlined
def _add_block(
    left: Any, right: Any, zeros: int, squares: float, sizes: float, scratch: Any, sums: Any, counts: Any
) -> None:  # fmt: skip
    """Add a block of finite numbers; `squares` and `sizes` are sums over the left ones."""
    sums[_REFERENCE_SQUARES] += squares
    sums[_REFERENCE] += sizes
    count = left.size
    difference, ratio, change = scratch[0, :count], scratch[1, :count], scratch[2, :count]
    total = _add_products(left, right, difference, sums)
    _add_differences(difference, total, sums, counts)
    if zeros:
        vanished = _add_relative_beside_zeros(left, right, difference, ratio, change, sums, counts)
        sums[_LOGARITHMS] -= _weighted_logarithms(left, ratio, change)
        if vanished:
            _add_vanished(left, right, ratio, change, sums)
    elif _add_relative(left, right, difference, ratio, change, sums, counts) < _NEAR_ONE:
        sums[_LOGARITHMS] -= _weighted_near_logarithms(left, change)
    else:
        sums[_LOGARITHMS] -= _weighted_logarithms(left, ratio, change)


@inlined
def _add_singles(
    left: Any, right: Any, grid: int, scratch: Any, kept: Any, sums: Any, counts: Any
) -> None:
    """Add one block of singles."""
    left_bits, right_bits = left.view(np.int32), right.view(np.int32)
    differing, peak, squares, sizes = _look(left, left_bits, right_bits, np.int32(0x7FFF_FFFF))
    if differing == 0 and peak < 0x7F80_0000:
        _add_equal(left.size, squares, sizes, sums, counts)
        return
    peak, zeros = _look_at_both(left_bits, right_bits, np.int32(0x7FFF_FFFF))
    if peak >= 0x7F80_0000:
        count = _keep_comparable(left, right, kept[0], kept[1], np.inf, counts)
        if count:
            one, two = kept[0, :count], kept[1, :count]
            bits = one.view(np.int32)
            _, _, squares, sizes = _look(one, bits, bits, np.int32(0x7FFF_FFFF))
            sums[_MAX_ULP] = max(sums[_MAX_ULP], most_ulps(one, two, grid))
            _add_block(one, two, 1, squares, sizes, scratch, sums, counts)
    else:
        sums[_MAX_ULP] = max(sums[_MAX_ULP], most_ulps(left, right, grid))
        _add_block(left, right, zeros, squares, sizes, scratch, sums, counts)


@compiled(
    "void(Array(float32, 1, 'C', readonly=True), Array(float32, 1, 'C', readonly=True),"
    " int64, float64[:, ::1], int64[:, ::1])"
)
def _of_singles(left: Any, right: Any, grid: int, sums: Any, counts: Any) -> None:
    scratch, kept = np.empty((3, BLOCK_ELEMENTS)), np.empty((2, BLOCK_ELEMENTS), np.float32)
    for start in range(0, left.size, BLOCK_ELEMENTS):
        stop, chunk = min(start + BLOCK_ELEMENTS, left.size), start // CHUNK_ELEMENTS
        _add_singles(
            left[start:stop], right[start:stop], grid, scratch, kept, sums[chunk], counts[chunk]
        )


@compiled(f"void({OPERAND}, {OPERAND}, uint64, uint64, int64, float64[:, ::1], int64[:, ::1])")
def _of_operands(
    left: Any, right: Any, start: int, stop: int, grid: int, sums: Any, counts: Any
) -> None:
    program, numbers, used, one, two, filled, corrected, places, values = left
    program_2, numbers_2, used_2, one_2, two_2, filled_2, corrected_2, places_2, values_2 = right
    table, table_2 = new_table(program, numbers, used), new_table(program_2, numbers_2, used_2)
    scratch, kept = np.empty((3, BLOCK_ELEMENTS)), np.empty((2, BLOCK_ELEMENTS), np.float32)
    both = np.empty((2, BLOCK_ELEMENTS), np.float32)
    for first in range(start, stop, np.uint64(BLOCK_ELEMENTS)):
        count: Any = min(np.uint64(BLOCK_ELEMENTS), stop - first)
        evaluate(
            program, used, one, two, filled, corrected, places, values,
            table, first, both, np.uint64(0), count,
        )  # fmt: skip
        evaluate(
            program_2, used_2, one_2, two_2, filled_2, corrected_2, places_2, values_2,
            table_2, first, both, np.uint64(1), count,
        )  # fmt: skip
        size, chunk = np.int64(count), np.int64(first - start) // CHUNK_ELEMENTS
        _add_singles(
            both[0, :size], both[1, :size], grid, scratch, kept, sums[chunk], counts[chunk]
        )


@inlined
def _add_doubles(
    left: Any, right: Any, grid: int, scratch: Any, kept: Any, sums: Any, counts: Any
) -> bool:
    """Add one block of doubles; False where one of them is of a size that this cannot add."""
    left_bits, right_bits = left.view(np.int64), right.view(np.int64)
    infinity = np.float64(np.inf).view(np.int64)
    least, largest = np.float64(LEAST).view(np.int64), np.float64(LARGEST).view(np.int64)
    if _is_out_of_range(left_bits, least, largest, infinity) or _is_out_of_range(
        right_bits, least, largest, infinity
    ):
        return False
    differing, peak, squares, sizes = _look(
        left, left_bits, right_bits, np.int64(0x7FFF_FFFF_FFFF_FFFF)
    )
    if differing == 0 and peak < infinity:
        _add_equal(left.size, squares, sizes, sums, counts)
        return True
    peak, zeros = _look_at_both(left_bits, right_bits, np.int64(0x7FFF_FFFF_FFFF_FFFF))
    count = left.size
    if peak >= infinity:
        count, zeros = _keep_comparable(left, right, kept[0], kept[1], np.inf, counts), 1
        bits = kept[0, :count].view(np.int64)
        _, _, squares, sizes = _look(kept[0, :count], bits, bits, np.int64(0x7FFF_FFFF_FFFF_FFFF))
    else:
        # Not as slices: Numba would compile a message about their shapes, for seconds.
        for place in range(count):
            kept[0, place], kept[1, place] = left[place], right[place]
    if count:
        one, two = kept[0, :count], kept[1, :count]
        if grid == 64:
            most = most_double_ulps(one.view(np.int64), two.view(np.int64))
        else:
            most = most_ulps(one, two, grid)
        sums[_MAX_ULP] = max(sums[_MAX_ULP], most)
        _add_block(one, two, zeros, squares, sizes, scratch, sums, counts)
    return True


@compiled(
    "boolean(Array(float64, 1, 'C', readonly=True), Array(float64, 1, 'C', readonly=True),"
    " int64, float64[:, ::1], int64[:, ::1])"
)
def _of_doubles(left: Any, right: Any, grid: int, sums: Any, counts: Any) -> bool:
    """Whether all numbers are of a size that this can add; where not, the sums are of no use."""
    scratch, kept = np.empty((3, BLOCK_ELEMENTS)), np.empty((2, BLOCK_ELEMENTS))
    for start in range(0, left.size, BLOCK_ELEMENTS):
        stop, chunk = min(start + BLOCK_ELEMENTS, left.size), start // CHUNK_ELEMENTS
        one, two = left[start:stop], right[start:stop]
        if not _add_doubles(one, two, grid, scratch, kept, sums[chunk], counts[chunk]):
            return False
    return True


def add_chunks(
    reference: Numbers,
    candidate: Numbers,
    *,
    grid: int,
    sums: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
) -> bool:
    """Add two arrays to sums and counts, all zero before, chunk by chunk.

    Parameters
    ----------
    reference, candidate
        Contiguous and of one dtype, float32 or float64, shape (n,).
    grid
        Which numbers ULPs count, one of `GRIDS`; 0 for none. For singles not 64; doubles are rounded to singles
        first for grids below 64.
    sums, counts
        Shapes (chunks, len(SUMS)) and (chunks, len(COUNTS)), a row for every CHUNK_ELEMENTS elements or part of them.

    Returns
    -------
    bool
        False where doubles hold numbers beyond `LEAST` and `LARGEST`; the sums are of no use then.
    """
    if reference.dtype == np.float32:
        _of_singles(reference, candidate, grid, sums, counts)
        return True
    return bool(_of_doubles(reference, candidate, grid, sums, counts))


def add_operands(
    reference: Operand,
    candidate: Operand,
    start: int,
    stop: int,
    *,
    grid: int,
    sums: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
) -> None:
    """The same for singles from start to stop of two operands, made as they are added; `start` begins a chunk."""
    _of_operands(tuple(reference), tuple(candidate), start, stop, grid, sums, counts)
