"""Statistics and sketch of an array in one compiled pass; the law of the sketch stands at `lockstep.core.sketch`.

Rows of the sketch's plan go by one after the other, each short enough for a processor's caches, and several plain
loops run over a row, each of which the compiler turns into vector instructions. Minimum and maximum are those of
integers that are ordered like the numbers; they also tell whether a row holds a number that is not finite.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.record import Statistics
from lockstep.core.sketch import (
    COLUMNS,
    ORDER,
    SKETCH_SIZE,
    block_plan,
    mixing_signs,
    plan_of,
    sign_table,
)
from lockstep.kernels.jit import compiled, part

_LOW_KEY, _HIGH_KEY, _ZEROS, _NANS, _INFS = range(5)
_SUM, _SQUARES = range(2)
_PER_ROW = SKETCH_SIZE // ORDER
_SCALE = 1 / np.sqrt(SKETCH_SIZE)

Numbers = npt.NDArray[Any]


@part
def _add_statistics(row: Any, bits: Any, format: Any, counts: Any, sums: Any) -> bool:
    """Count one row; whether all of it is finite. `format` is `_FORMATS`' of the dtype."""
    sign_shift, sizes, infinity = format
    total, squares, zeros = 0.0, 0.0, 0
    low, high = sizes, ~sizes
    for position in range(row.size):
        number, pattern = np.float64(row[position]), bits[position]
        total += number
        squares += number * number
        key = pattern ^ ((pattern >> sign_shift) & sizes)
        zeros += (pattern & sizes) == 0
        low, high = min(key, low), max(key, high)
    if high >= infinity or low <= ~infinity:
        _add_non_finite(row, bits, format, counts, sums)
        return False
    counts[_LOW_KEY] = min(counts[_LOW_KEY], low)
    counts[_HIGH_KEY] = max(counts[_HIGH_KEY], high)
    counts[_ZEROS] += zeros
    sums[_SUM] += total
    sums[_SQUARES] += squares
    return True


@part
def _add_non_finite(row: Any, bits: Any, format: Any, counts: Any, sums: Any) -> None:
    """Count a row in which some numbers are not finite: those are counted and left out."""
    sign_shift, sizes, infinity = format
    for position in range(row.size):
        size = bits[position] & sizes
        if size > infinity:
            counts[_NANS] += 1
        elif size == infinity:
            counts[_INFS] += 1
        else:
            number = np.float64(row[position])
            key = bits[position] ^ ((bits[position] >> sign_shift) & sizes)
            counts[_LOW_KEY] = min(counts[_LOW_KEY], key)
            counts[_HIGH_KEY] = max(counts[_HIGH_KEY], key)
            counts[_ZEROS] += size == 0
            sums[_SUM] += number
            sums[_SQUARES] += number * number


@part
def _add_to_lanes(row: Any, signs: Any, sign: Any, lanes: Any, finite: bool) -> None:
    """Add a row, or a part of one, to as many lanes."""
    if finite:
        for lane in range(row.size):
            lanes[lane] += np.float64(row[lane]) * np.float64(signs[lane]) * sign
    else:
        for lane in range(row.size):
            if np.isfinite(row[lane]):
                lanes[lane] += np.float64(row[lane]) * np.float64(signs[lane]) * sign


@part
def _add_row(row: Any, finite: bool, place: int, block: Any, table: Any, lanes: Any) -> None:
    """Add row `place` of a block to the lanes; `block` is offset, sign and shift."""
    signs = table[block[0] + place * lanes.size :]
    sign, shift = np.float64(block[1]), block[2]
    head = min(row.size, lanes.size - shift)
    _add_to_lanes(row[:head], signs[:head], sign, lanes[shift:], finite)
    _add_to_lanes(row[head:], signs[head:], sign, lanes, finite)


@part
def _mix(lanes: Any, signs: Any, sketch: Any) -> None:
    """Mix the lanes into the sketch: a fast Walsh-Hadamard transform along the rows, then the signs."""
    for number in range(signs.shape[0]):
        rows = lanes[number * ORDER * COLUMNS : (number + 1) * ORDER * COLUMNS]
        half = COLUMNS
        while half < ORDER * COLUMNS:
            for start in range(0, ORDER * COLUMNS, 2 * half):
                for place in range(start, start + half):
                    upper, lower = rows[place], rows[place + half]
                    rows[place], rows[place + half] = upper + lower, upper - lower
            half *= 2
        for order in range(ORDER):
            for place in range(_PER_ROW):
                total = 0.0
                for column in range(COLUMNS):
                    total += rows[order * COLUMNS + column] * signs[number, order, place, column]
                sketch[order * _PER_ROW + place] += total * _SCALE


@part
def _take_row(
    place: int, row: Any, bits: Any, format: Any, plan: Any, table: Any, lanes: Any, results: Any
) -> None:
    """Take row number `place` of the array; without a plan there is no sketch."""
    counts, sums = results
    finite = _add_statistics(row, bits, format, counts, sums)
    if plan.shape[0]:
        block = plan[place // plan[0, 3]]
        _add_row(row, finite, place % plan[0, 3], block, table, lanes)


@part
def _keep(row: Any, sketch: Any) -> None:
    """A small array is its own sketch."""
    for place in range(min(row.size, SKETCH_SIZE)):
        if np.isfinite(row[place]):
            sketch[place] = row[place]


@part
def _take_all(
    values: Any, bits: Any, format: Any, width: int, plan: Any, signs: Any, results: Any
) -> Any:
    table, mixing = signs
    lanes, sketch = np.zeros(mixing.shape[0] * ORDER * COLUMNS), np.zeros(SKETCH_SIZE)
    for start in range(0, values.size, width):
        row, pattern = values[start : start + width], bits[start : start + width]
        _take_row(start // width, row, pattern, format, plan, table, lanes[:width], results)
    if plan.shape[0]:
        _mix(lanes, mixing, sketch)
    return sketch


_REST = "int64, int64[:, ::1], int8[::1], int8[:, :, :, ::1], int64[::1], float64[::1])"


@compiled("float64[::1](float32[::1], int32[::1], " + _REST)
def _of_float32(
    values: Any, bits: Any, width: int, plan: Any, table: Any, mixing: Any, counts: Any, sums: Any
) -> Any:
    format = (np.int32(31), np.int32(0x7FFF_FFFF), np.int32(0x7F80_0000))
    return _take_all(values, bits, format, width, plan, (table, mixing), (counts, sums))


@compiled("float64[::1](float64[::1], int64[::1], " + _REST)
def _of_float64(
    values: Any, bits: Any, width: int, plan: Any, table: Any, mixing: Any, counts: Any, sums: Any
) -> Any:
    format = (np.int64(63), np.int64(0x7FFF_FFFF_FFFF_FFFF), np.int64(0x7FF0_0000_0000_0000))
    return _take_all(values, bits, format, width, plan, (table, mixing), (counts, sums))


@compiled("float64[::1](uint16[::1], " + _REST)
def _of_bfloat16(
    halves: Any, width: int, plan: Any, table: Any, mixing: Any, counts: Any, sums: Any
) -> Any:
    """The upper halves of float32 numbers, widened row by row."""
    format = (np.int32(31), np.int32(0x7FFF_FFFF), np.int32(0x7F80_0000))
    lanes, sketch = np.zeros(mixing.shape[0] * ORDER * COLUMNS), np.zeros(SKETCH_SIZE)
    bits = np.empty(width, np.int32)
    values = bits.view(np.float32)
    for start in range(0, halves.size, width):
        row = halves[start : start + width]
        for place in range(row.size):
            bits[place] = np.int32(row[place]) << 16
        count, results = row.size, (counts, sums)
        _take_row(
            start // width,
            values[:count],
            bits[:count],
            format,
            plan,
            table,
            lanes[:width],
            results,
        )
    if plan.shape[0]:
        _mix(lanes, mixing, sketch)
    return sketch


@part
def _take_each(
    values: Any, bits: Any, format: Any, ends: Any, counts: Any, sums: Any, sketches: Any
) -> None:
    """Take short arrays that lie behind each other, of which each is its own sketch."""
    start = 0
    for number in range(ends.size):
        row, pattern = values[start : ends[number]], bits[start : ends[number]]
        _add_statistics(row, pattern, format, counts[number], sums[number])
        if sketches.shape[0]:
            _keep(row, sketches[number])
        start = ends[number]


_EACH = "int64[::1], int64[:, ::1], float64[:, ::1], float64[:, ::1])"


@compiled("void(float32[::1], int32[::1], " + _EACH)
def _of_each_float32(
    values: Any, bits: Any, ends: Any, counts: Any, sums: Any, sketches: Any
) -> None:
    format = (np.int32(31), np.int32(0x7FFF_FFFF), np.int32(0x7F80_0000))
    _take_each(values, bits, format, ends, counts, sums, sketches)


@compiled("void(float64[::1], int64[::1], " + _EACH)
def _of_each_float64(
    values: Any, bits: Any, ends: Any, counts: Any, sums: Any, sketches: Any
) -> None:
    format = (np.int64(63), np.int64(0x7FFF_FFFF_FFFF_FFFF), np.int64(0x7FF0_0000_0000_0000))
    _take_each(values, bits, format, ends, counts, sums, sketches)


_WIDTH = 4096
"""Elements of a row where there is no sketch, whose plan would say so."""


@lru_cache(maxsize=256)
def _plan(width: int, per_block: int, count: int) -> npt.NDArray[np.int64]:
    """Offset, sign and shift of so many blocks, and rows per block, of shape (count, 4)."""
    plans = (block_plan(block) for block in range(count))
    rows = [(offset, int(sign), shift % width, per_block) for offset, sign, shift in plans]
    return np.array(rows, np.int64).reshape(count, 4)


_NO_PLAN, _NO_MIXING = np.empty((0, 4), np.int64), np.empty((0, 1, 1, 1), np.int8)
_EMPTY = (np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0, 0, 0)


def numbers_of_array(
    values: Numbers, *, with_sketch: bool
) -> tuple[Statistics, npt.NDArray[np.float64] | None]:
    """Statistics and sketch of a contiguous array.

    Parameters
    ----------
    values
        float32 or float64 of shape (n,), or the bit patterns of bfloat16 numbers as uint16.
    with_sketch
        Whether to take the sketch as well.

    Returns
    -------
    tuple
        `Statistics`, and the sketch as float64 of shape (SKETCH_SIZE,) or None.
    """
    if values.size <= SKETCH_SIZE:
        statistics, sketches = numbers_of_each(values, [values.size], with_sketch=with_sketch)
        return statistics[0], sketches[0] if with_sketch else None
    counts, sums = np.array(_EMPTY, np.int64), np.zeros(2)
    width, plan, mixing = _WIDTH, _NO_PLAN, _NO_MIXING
    if with_sketch:
        law = plan_of(values.size)
        blocks = -(-values.size // law.block)
        width, mixing = law.row, mixing_signs(law.parts)
        plan = _plan(width, law.block // width, 1 << (blocks - 1).bit_length())
    rest = (width, plan, sign_table(), mixing, counts, sums)
    if values.dtype == np.float32:
        sketch = _of_float32(values, values.view(np.int32), *rest)
    elif values.dtype == np.float64:
        sketch = _of_float64(values, values.view(np.int64), *rest)
    else:
        sketch = _of_bfloat16(values, *rest)
    found = _statistics(values.dtype, values.size, counts.tolist(), sums.tolist())
    return found, sketch if with_sketch else None


def numbers_of_each(
    values: Numbers, sizes: Sequence[int], *, with_sketch: bool
) -> tuple[list[Statistics], npt.NDArray[np.float64]]:
    """Statistics and sketches of many short arrays in one call; the same as of each alone.

    Parameters
    ----------
    values
        The arrays behind each other, of a dtype that `numbers_of_array` takes.
    sizes
        Elements of each, at most SKETCH_SIZE.
    with_sketch
        Whether to take sketches as well.

    Returns
    -------
    tuple
        One `Statistics` each, and the sketches as float64 of shape (len(sizes), SKETCH_SIZE), or (0, SKETCH_SIZE).
    """
    counts = np.empty((len(sizes), len(_EMPTY)), np.int64)
    counts[:] = _EMPTY
    sums = np.zeros((len(sizes), 2))
    sketches = np.zeros((len(sizes) if with_sketch else 0, SKETCH_SIZE))
    rest = (np.cumsum(sizes, dtype=np.int64), counts, sums, sketches)
    if values.dtype == np.float64:
        _of_each_float64(values, values.view(np.int64), *rest)
    else:
        bits = (
            values.view(np.int32) if values.dtype == np.float32 else values.astype(np.int32) << 16
        )
        _of_each_float32(bits.view(np.float32), bits, *rest)
    found = zip(sizes, counts.tolist(), sums.tolist(), strict=True)
    return [_statistics(values.dtype, *item) for item in found], sketches


def prepare() -> None:
    """Have the loops for float32 ready, so that the first tensor does not wait for the compiler."""
    for size in (SKETCH_SIZE, SKETCH_SIZE + 1):
        numbers_of_array(np.zeros(size, np.float32), with_sketch=False)


def _statistics(
    dtype: np.dtype[Any], size: int, counts: Sequence[int], sums: Sequence[float]
) -> Statistics:
    low, high, zeros, nans, infinities = counts
    finite = size - nans - infinities
    double = dtype == np.float64
    return Statistics(
        minimum=_number(low, double=double) if finite else math.nan,
        maximum=_number(high, double=double) if finite else math.nan,
        mean=sums[_SUM] / finite if finite else math.nan,
        norm=math.sqrt(sums[_SQUARES]),
        nan_count=nans,
        inf_count=infinities,
        zero_count=zeros,
    )


def _number(key: int, *, double: bool) -> float:
    """The number that a key stands for: negative ones are in reverse order among the integers."""
    pattern, number = ("<q", "<d") if double else ("<i", "<f")
    bits = key if key >= 0 else key ^ (0x7FFF_FFFF_FFFF_FFFF if double else 0x7FFF_FFFF)
    return float(struct.unpack(number, struct.pack(pattern, bits))[0])
