"""The loops that `lockstep.kernels.numbers` compiles: statistics and the lanes of a sketch, row by row.

Rows of the sketch's plan go by one after the other, each short enough for a processor's caches, and several plain
loops run over a row, each of which the compiler turns into vector instructions. Minimum and maximum are those of
integers that are ordered like the numbers; they also tell whether a row holds a number that is not finite.

A large array is cut into shares of rows, as many as its size says, which threads take one after the other. What was
found in each share is put together in order, so that no number depends on how many threads there were.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.core.sketch import COLUMNS, ORDER, SKETCH_SIZE
from lockstep.kernels.jit import array_at, compiled, part, taken, task
from lockstep.kernels.xxh3 import (
    AVALANCHE,
    BEGINNING,
    BLOCK,
    BLOCK_STRIPES,
    CHUNK,
    KEYS,
    LAST,
    MERGE_HIGH,
    MERGE_LOW,
    PRIME32_1,
    SCRAMBLE,
    START_HIGH,
    START_LOW,
    STRIPE,
    add_block,
    add_stripe,
    folded,
)

_COUNTS = LOW_KEY, HIGH_KEY, ZEROS, NANS, INFS, TINY = 0, 1, 2, 3, 4, 5
"""What is counted; the keys are the smallest and the largest number, as integers in the numbers' order, and the
tiny ones are zeros and what is smaller than the smallest normal number."""

SUM, SQUARES = range(2)

HEAD = 9
TAKEN, SHARES, ELEMENTS, WIDTH, SHARE_ROWS, BLOCKS, SIGNS, LANES, CHUNKS = range(HEAD)
"""What the first places of a task say: shares taken by threads so far and in all, elements of the array and of a row,
rows of a share, blocks in the sketch's plan, elements of its table of signs, its lanes, and chunks to be digested."""

PER_SHARE = len(_COUNTS) + 2
"""Places of a share before its lanes: counts, then sums. Shares come after the digests, two places for each chunk."""

TOGETHER = 4
"""Rows that are added to the lanes at once; blocks and shares are multiples of it."""

_PER_ROW = SKETCH_SIZE // ORDER
_SCALE = 1 / np.sqrt(SKETCH_SIZE)


@part
def _add_statistics(row: Any, format: Any, counts: Any, sums: Any) -> bool:
    """Count one row, not empty; whether all of it is finite."""
    values, bits, patterns = row
    sign_shift, sizes, infinity, integer, unsigned = format
    least_normal = unsigned(
        unsigned(infinity & -infinity) << unsigned(1)
    )  # the last bit of the exponent alone
    total, squares = 0.0, 0.0
    for position in range(values.size):
        number = np.float64(values[position])
        total += number
        squares += number * number
    # Taken apart by sign, bits are ordered like the numbers: negative ones are the largest without a sign.
    low, high, least, most = bits[0], bits[0], unsigned(patterns[0] << unsigned(1)), patterns[0]
    for position in range(bits.size):
        pattern = patterns[position]
        low, high = min(low, bits[position]), max(high, bits[position])
        least, most = min(least, unsigned(pattern << unsigned(1))), max(most, pattern)
    if high >= infinity or integer(most) & sizes >= infinity:
        _add_non_finite(values, bits, format, counts, sums)
        return False
    lowest = integer(most) if low < 0 else low
    highest = low if high < 0 else high
    counts[LOW_KEY] = min(counts[LOW_KEY], lowest ^ ((lowest >> sign_shift) & sizes))
    counts[HIGH_KEY] = max(counts[HIGH_KEY], highest ^ ((highest >> sign_shift) & sizes))
    if least < least_normal:
        _add_tiny(patterns, least_normal, integer, unsigned, counts)
    sums[SUM] += total
    sums[SQUARES] += squares
    return True


@part
def _add_tiny(patterns: Any, least_normal: Any, integer: Any, unsigned: Any, counts: Any) -> None:
    """Count the zeros of one row, and what is smaller than a normal number; signs are shifted out."""
    zeros, tiny = integer(0), integer(0)
    for position in range(patterns.size):
        size = unsigned(patterns[position] << unsigned(1))
        zeros = integer(zeros + integer(size == unsigned(0)))
        tiny = integer(tiny + integer(size < least_normal))
    counts[ZEROS] += zeros
    counts[TINY] += tiny


@part
def _add_non_finite(values: Any, bits: Any, format: Any, counts: Any, sums: Any) -> None:
    """Count a row in which some numbers are not finite: those are counted and left out."""
    sign_shift, sizes, infinity, _, _ = format
    for position in range(values.size):
        size = bits[position] & sizes
        if size > infinity:
            counts[NANS] += 1
        elif size == infinity:
            counts[INFS] += 1
        else:
            number = np.float64(values[position])
            key = bits[position] ^ ((bits[position] >> sign_shift) & sizes)
            counts[LOW_KEY] = min(counts[LOW_KEY], key)
            counts[HIGH_KEY] = max(counts[HIGH_KEY], key)
            counts[ZEROS] += size == 0
            counts[TINY] += size < (infinity & -infinity)
            sums[SUM] += number
            sums[SQUARES] += number * number


@part
def _add_row(row: Any, place: int, block: Any, table: Any, lanes: Any) -> None:
    """Add row `place` of a block to the lanes, without what is not finite; `block` is offset, sign and shift."""
    signs = table[block[0] + place * lanes.size :]
    sign, shift = np.float64(block[1]), block[2]
    head = min(row.size, lanes.size - shift)
    for turn in range(2):
        part_of_row, its_signs = row[head * turn :], signs[head * turn :]
        to, size = lanes[shift * (1 - turn) :], row.size - head if turn else head
        for lane in range(size):
            number = np.float64(part_of_row[lane])
            to[lane] += (number if abs(number) < np.inf else 0.0) * its_signs[lane] * sign


@part
def _add_rows(values: Any, place: int, block: Any, table: Any, lanes: Any) -> None:
    """Add `TOGETHER` whole rows, all finite, of which `place` is the first: lanes are read and written once."""
    width, sign, shift = lanes.size, np.float64(block[1]), block[2]
    signs = table[block[0] + place * width :]
    for turn in range(2):
        start = (width - shift) * turn
        part_of_rows, its_signs = values[start:], signs[start:]
        to = lanes[shift:] if turn == 0 else lanes[:shift]
        row_1, signs_1 = part_of_rows, its_signs
        row_2, signs_2 = part_of_rows[width:], its_signs[width:]
        row_3, signs_3 = part_of_rows[2 * width :], its_signs[2 * width :]
        row_4, signs_4 = part_of_rows[3 * width :], its_signs[3 * width :]
        for lane in range(to.size):
            total = np.float64(row_1[lane]) * np.float64(signs_1[lane])
            total += np.float64(row_2[lane]) * np.float64(signs_2[lane])
            total += np.float64(row_3[lane]) * np.float64(signs_3[lane])
            total += np.float64(row_4[lane]) * np.float64(signs_4[lane])
            to[lane] += total * sign


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
def _merged(sums: Any, keys: Any, start: Any) -> Any:
    result = start
    for pair in range(4):
        left, right = sums[2 * pair] ^ keys[2 * pair], sums[2 * pair + 1] ^ keys[2 * pair + 1]
        result += folded(left, right)
    result ^= result >> np.uint64(37)
    result *= np.uint64(AVALANCHE)
    return result ^ (result >> np.uint64(32))


@part
def _take_chunk(data: Any, sums: Any, digest: Any) -> None:
    """XXH3-128 of one chunk: upper half first."""
    for lane in range(8):
        sums[lane] = BEGINNING[lane]
    blocks = (CHUNK - 1) // BLOCK
    for block in range(blocks):
        add_block(data, block * BLOCK, KEYS, sums)
        for lane in range(8):
            scrambled = sums[lane] ^ (sums[lane] >> np.uint64(47)) ^ SCRAMBLE[lane]
            sums[lane] = scrambled * np.uint64(PRIME32_1)
    for stripe in range(BLOCK_STRIPES - 1):
        add_stripe(data, blocks * BLOCK + stripe * STRIPE, KEYS[stripe:], sums)
    add_stripe(data, CHUNK - STRIPE, LAST, sums)
    digest[0] = _merged(sums, MERGE_HIGH, START_HIGH)
    digest[1] = _merged(sums, MERGE_LOW, START_LOW)


@part
def _take_chunks(first: int, stop: int, digesting: Any) -> None:
    """Digest the chunks that begin in a range of bytes, so that its numbers are in the cache when they are taken."""
    data, digests, sums = digesting
    for chunk in range(-(-first // CHUNK), min(-(-stop // CHUNK), digests.size // 2)):
        _take_chunk(data[chunk * CHUNK : (chunk + 1) * CHUNK], sums, digests[2 * chunk :])


@part
def _digesting(given: Any, sizes: Any) -> Any:
    """Bytes and digests of a task, and memory to work in."""
    chunks = sizes[CHUNKS]
    digests = array_at(given[0], HEAD + 2 * chunks, np.uint64)[HEAD:]
    return array_at(given[1], chunks * CHUNK, np.uint8), digests, np.empty(8, np.uint64)


@part
def _take_rows(
    place: int, rows: Any, format: Any, row_bytes: int, digesting: Any, sketching: Any, results: Any
) -> None:
    """Take `TOGETHER` rows of the array, or what is left of them; `place` is the first one's number."""
    (plan, table, width), (counts, sums, lanes), (values, bits, patterns) = sketching, results, rows
    finite = values.size == TOGETHER * width
    for number in range(TOGETHER):
        start, stop = number * width, (number + 1) * width
        row = values[start:stop], bits[start:stop], patterns[start:stop]
        if row[0].size:
            start_byte = (place + number) * row_bytes
            _take_chunks(start_byte, start_byte + row_bytes, digesting)
            finite &= _add_statistics(row, format, counts, sums)
    if plan.shape[0] == 0:
        return
    block, in_block = plan[place // plan[0, 3]], place % plan[0, 3]
    if finite:
        _add_rows(values, in_block, block, table, lanes)
        return
    for number in range(TOGETHER):
        row = values[number * width : (number + 1) * width]
        _add_row(row, in_block + number, block, table, lanes)


@part
def _sketching(given: Any, sizes: Any) -> Any:
    """Plan and signs of a task, and the elements of a row. A task is given its places, the array, and these two."""
    plan = array_at(given[2], (sizes[BLOCKS], 4), np.int64)
    return plan, array_at(given[3], sizes[SIGNS], np.int8), sizes[WIDTH]


@part
def _results_of(share: int, chunks: int, lanes: int, integers: Any, places: Any) -> Any:
    """Counts, sums and lanes of a share among the 64-bit places of a task, which are also there as integers."""
    start = HEAD + 2 * chunks + share * (PER_SHARE + lanes)
    sums = start + len(_COUNTS)
    return (
        integers[start:sums],
        places[sums : start + PER_SHARE],
        places[start + PER_SHARE :][:lanes],
    )


@part
def _begun(given: Any, sizes: Any, share: int) -> Any:
    """Where the numbers of a share go."""
    chunks, all_lanes = sizes[CHUNKS], sizes[LANES]
    size = HEAD + 2 * chunks + sizes[SHARES] * (PER_SHARE + all_lanes)
    integers, places = array_at(given[0], size, np.int64), array_at(given[0], size, np.float64)
    counts, sums, lanes = _results_of(share, chunks, all_lanes, integers, places)
    counts[LOW_KEY], counts[HIGH_KEY] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    counts[ZEROS] = counts[NANS] = counts[INFS] = counts[TINY] = 0
    sums[SUM] = sums[SQUARES] = 0.0
    for lane in range(all_lanes):
        lanes[lane] = 0.0
    return counts, sums, lanes[: sizes[WIDTH]]


@part
def _take_shares(given: Any, sizes: Any, rows: Any, format: Any) -> None:
    (values, bits, patterns), sketching = rows, _sketching(given, sizes)
    digesting, row_bytes = _digesting(given, sizes), sizes[WIDTH] * values.itemsize
    while True:
        share = taken(sizes)
        if share >= sizes[SHARES]:
            return
        results = _begun(given, sizes, share)
        first = share * sizes[SHARE_ROWS]
        for place in range(first, first + sizes[SHARE_ROWS], TOGETHER):
            start, stop = place * sizes[WIDTH], (place + TOGETHER) * sizes[WIDTH]
            some = values[start:stop], bits[start:stop], patterns[start:stop]
            _take_rows(place, some, format, row_bytes, digesting, sketching, results)


@part
def _format32() -> Any:
    """Of 32-bit numbers: how far the sign is from the last bit, all other bits, infinity, and integers of that size."""
    return np.int32(31), np.int32(0x7FFF_FFFF), np.int32(0x7F80_0000), np.int32, np.uint32


@part
def _format64() -> Any:
    sizes, infinity = np.int64(0x7FFF_FFFF_FFFF_FFFF), np.int64(0x7FF0_0000_0000_0000)
    return np.int64(63), sizes, infinity, np.int64, np.uint64


@task
def of_float32(given: Any) -> None:
    """Take a float32 array; see `TAKEN`."""
    sizes = array_at(given[0], HEAD, np.int64)
    count = sizes[ELEMENTS]
    values, bits = array_at(given[1], count, np.float32), array_at(given[1], count, np.int32)
    patterns = array_at(given[1], count, np.uint32)
    _take_shares(given, sizes, (values, bits, patterns), _format32())


@task
def of_float64(given: Any) -> None:
    """Take a float64 array."""
    sizes = array_at(given[0], HEAD, np.int64)
    count = sizes[ELEMENTS]
    values, bits = array_at(given[1], count, np.float64), array_at(given[1], count, np.int64)
    patterns = array_at(given[1], count, np.uint64)
    _take_shares(given, sizes, (values, bits, patterns), _format64())


@task
def of_bfloat16(given: Any) -> None:
    """Take the upper halves of float32 numbers, widened some rows at a time."""
    sizes = array_at(given[0], HEAD, np.int64)
    halves = array_at(given[1], sizes[ELEMENTS], np.uint16)
    width, sketching = sizes[WIDTH], _sketching(given, sizes)
    digesting, row_bytes = _digesting(given, sizes), width * halves.itemsize
    patterns = np.empty(TOGETHER * width, np.uint32)
    values, bits = patterns.view(np.float32), patterns.view(np.int32)
    while True:
        share = taken(sizes)
        if share >= sizes[SHARES]:
            return
        results = _begun(given, sizes, share)
        first = share * sizes[SHARE_ROWS]
        for place in range(first, first + sizes[SHARE_ROWS], TOGETHER):
            some = halves[place * width : (place + TOGETHER) * width]
            for position in range(some.size):
                patterns[position] = np.uint32(some[position]) << np.uint32(16)
            size = some.size
            rows = values[:size], bits[:size], patterns[:size]
            _take_rows(place, rows, _format32(), row_bytes, digesting, sketching, results)


@task
def of_chunks(given: Any) -> None:
    """Digests of whole chunks alone; given are chunks taken so far and in all, bytes, and where digests go."""
    sizes = array_at(given[0], 2, np.int64)
    data = array_at(given[1], sizes[1] * CHUNK, np.uint8)
    digests, sums = array_at(given[2], 2 * sizes[1], np.uint64), np.empty(8, np.uint64)
    while True:
        chunk = taken(sizes)
        if chunk >= sizes[1]:
            return
        _take_chunk(data[chunk * CHUNK : (chunk + 1) * CHUNK], sums, digests[2 * chunk :])


@compiled("void(int64[::1], float64[::1], int8[:, :, :, ::1], float64[::1])")
def put_together(integers: Any, places: Any, mixing: Any, sketch: Any) -> None:
    """Add all shares to the first one, in order, and mix its lanes into the sketch, where there are any."""
    shares, chunks, lanes = integers[SHARES], integers[CHUNKS], integers[LANES]
    counts, sums, total = _results_of(0, chunks, lanes, integers, places)
    for share in range(1, shares):
        more_counts, more_sums, more = _results_of(share, chunks, lanes, integers, places)
        counts[LOW_KEY] = min(counts[LOW_KEY], more_counts[LOW_KEY])
        counts[HIGH_KEY] = max(counts[HIGH_KEY], more_counts[HIGH_KEY])
        for count in (ZEROS, NANS, INFS, TINY):
            counts[count] += more_counts[count]
        for kind in (SUM, SQUARES):
            sums[kind] += more_sums[kind]
        for lane in range(lanes):
            total[lane] += more[lane]
    if lanes:
        _mix(total, mixing, sketch)


@part
def _keep(row: Any, sketch: Any) -> None:
    """A small array is its own sketch."""
    for place in range(min(row.size, SKETCH_SIZE)):
        if np.isfinite(row[place]):
            sketch[place] = row[place]


@part
def _take_each(rows: Any, format: Any, ends: Any, counts: Any, sums: Any, sketches: Any) -> None:
    """Take short arrays that lie behind each other, of which each is its own sketch."""
    values, bits, patterns = rows
    start = 0
    for number in range(ends.size):
        stop = ends[number]
        row = values[start:stop], bits[start:stop], patterns[start:stop]
        if row[0].size:
            _add_statistics(row, format, counts[number], sums[number])
        if sketches.shape[0]:
            _keep(row[0], sketches[number])
        start = stop


_EACH = "int64[::1], int64[:, ::1], float64[:, ::1], float64[:, ::1])"


@compiled("void(float32[::1], int32[::1], uint32[::1], " + _EACH)
def of_each_float32(
    values: Any, bits: Any, patterns: Any, ends: Any, counts: Any, sums: Any, sketches: Any
) -> None:
    """Take short float32 arrays one after the other."""
    _take_each((values, bits, patterns), _format32(), ends, counts, sums, sketches)


@compiled("void(float64[::1], int64[::1], uint64[::1], " + _EACH)
def of_each_float64(
    values: Any, bits: Any, patterns: Any, ends: Any, counts: Any, sums: Any, sketches: Any
) -> None:
    """Take short float64 arrays one after the other."""
    _take_each((values, bits, patterns), _format64(), ends, counts, sums, sketches)
