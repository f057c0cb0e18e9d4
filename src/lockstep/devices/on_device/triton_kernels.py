"""The Triton kernels of `triton_numbers`, which launches them.

They take integers of 64 bits from a table, in the order of `KEYS` and what follows it: Triton gives a number in the
source the smallest type that holds it.
"""

import triton
import triton.language as tl

KEYS, SCRAMBLE, LAST, MERGE_LOW, MERGE_HIGH, BEGINNING, PRIMES = (
    tl.constexpr(start) for start in (0, 24, 32, 40, 48, 56, 64)
)


@triton.jit
def _words(base, offsets, mask, width: tl.constexpr):
    """Words of 8 bytes at byte offsets, read in pieces of `width` bytes, to which they are aligned."""
    if width == 8:
        return tl.load((base + offsets).to(tl.pointer_type(tl.uint64)), mask=mask, other=0)
    word = tl.zeros_like(offsets).to(tl.uint64)
    for piece in tl.static_range(8 // width):
        place = base + offsets + piece * width
        if width == 4:
            read = tl.load(place.to(tl.pointer_type(tl.uint32)), mask=mask, other=0)
        elif width == 2:
            read = tl.load(place.to(tl.pointer_type(tl.uint16)), mask=mask, other=0)
        else:
            read = tl.load(place, mask=mask, other=0)
        word |= read.to(tl.uint64) << (8 * width * piece)
    return word


@triton.jit
def _constant(table, places):
    return tl.load(table + places).to(tl.uint64, bitcast=True)


@triton.jit
def _added(words, swapped, keys):
    """What stripes add to the eight sums; `swapped` are the words of their neighbours."""
    keyed = words ^ keys
    return tl.sum((keyed & 0xFFFFFFFF) * (keyed >> 32) + swapped, axis=0)


@triton.jit
def _merged(sums, keys, start, avalanche):
    """One half of a digest, of the eight sums."""
    left, right = tl.split(tl.reshape(sums ^ keys, (4, 2)))
    result = start + tl.sum(tl.umulhi(left, right) ^ (left * right), axis=0)
    result ^= result >> 37
    result *= avalanche
    return result ^ (result >> 32)


@triton.jit
def _scrambled(sums, table, lane):
    mixed = sums ^ (sums >> 47) ^ _constant(table, SCRAMBLE + lane)
    return mixed * _constant(table, PRIMES)


@triton.jit
def _loaded(values, places, mask, infinity, floating: tl.constexpr, bits: tl.constexpr):
    """Elements as float64, zero where they are not finite, and their magnitudes as integers."""
    read = tl.load(values + places, mask=mask, other=0)
    if floating:
        sign_free = (1 << (bits - 1)) - 1
        if bits == 16:
            pattern = read.to(tl.int16, bitcast=True).to(tl.int64)
        elif bits == 32:
            pattern = read.to(tl.int32, bitcast=True).to(tl.int64)
        else:
            pattern = read.to(tl.int64, bitcast=True)
        magnitude = pattern & sign_free
        kept = tl.where(magnitude < infinity, read, tl.zeros_like(read))
        if bits < 64:
            kept = kept.to(tl.float32)
        return kept.to(tl.float64), magnitude
    return read.to(tl.float64), (read != 0).to(tl.int64)


@triton.jit
def chunk_kernel(
    data, values, table, found, size_bytes, count, infinity, least,
    floating: tl.constexpr, bits: tl.constexpr, width: tl.constexpr, item: tl.constexpr,
    chunk_bytes: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Digest and statistics of one chunk."""
    chunk = tl.program_id(0).to(tl.int64)
    start = chunk * chunk_bytes
    size = tl.minimum(size_bytes - start, chunk_bytes)
    blocks = (size - 1) // 1024
    lane, stripe = tl.arange(0, 8), tl.arange(0, 16)
    offsets = stripe[:, None] * 64 + lane[None, :] * 8
    swapped = stripe[:, None] * 64 + (lane ^ 1)[None, :] * 8
    keys = _constant(table, KEYS + stripe[:, None] + lane[None, :])
    everything = offsets >= 0
    sums = _constant(table, BEGINNING + lane)
    per_block: tl.constexpr = 1024 // item
    position = tl.arange(0, per_block).to(tl.int64)
    low = tl.full((per_block,), float("inf"), tl.float64)
    high = tl.full((per_block,), float("-inf"), tl.float64)
    zeros = tl.zeros((per_block,), tl.int64)
    nans, infs, tiny = zeros, zeros, zeros
    total = tl.zeros((per_block,), tl.float64)
    squares = total
    for block in range(blocks + 1):
        here = start + block * 1024
        if block < blocks:
            words = _words(data, here + offsets, everything, width)
            others = _words(data, here + swapped, everything, width)
            sums = _scrambled(sums + _added(words, others, keys), table, lane)
        places = here // item + position
        mask = places < count
        number, magnitude = _loaded(values, places, mask, infinity, floating, bits)
        finite = mask
        if floating:
            finite = mask & (magnitude < infinity)
            nans += (mask & (magnitude > infinity)).to(tl.int64)
            infs += (mask & (magnitude == infinity)).to(tl.int64)
            tiny += (mask & (magnitude < least)).to(tl.int64)
        zeros += (mask & (magnitude == 0)).to(tl.int64)
        low = tl.minimum(low, tl.where(finite, number, float("inf")))
        high = tl.maximum(high, tl.where(finite, number, float("-inf")))
        total += number
        squares += number * number
    stripes = (size - 1 - blocks * 1024) // 64
    rest = (stripe < stripes)[:, None] & everything
    here = start + blocks * 1024
    words, others = (
        _words(data, here + offsets, rest, width),
        _words(data, here + swapped, rest, width),
    )
    sums += tl.sum(
        tl.where(rest, ((words ^ keys) & 0xFFFFFFFF) * ((words ^ keys) >> 32) + others, 0), axis=0
    )
    # XXH3 has other rules for what is shorter than a stripe; such a chunk's digest is not used.
    final = start + tl.maximum(size - 64, 0)
    one = lane[None, :] * 8
    words = _words(data, final + one, one >= 0, item)
    others = _words(data, final + (one ^ 8), one >= 0, item)
    sums += _added(words, others, _constant(table, LAST + lane)[None, :])
    length = size.to(tl.uint64)
    avalanche = _constant(table, PRIMES + 1)
    lower = _merged(
        sums, _constant(table, MERGE_LOW + lane), length * _constant(table, PRIMES + 2), avalanche
    )
    upper = _merged(
        sums,
        _constant(table, MERGE_HIGH + lane),
        ~(length * _constant(table, PRIMES + 3)),
        avalanche,
    )
    row = found + chunk * columns
    tl.store(row, upper.to(tl.int64, bitcast=True))
    tl.store(row + 1, lower.to(tl.int64, bitcast=True))
    tl.store(row + 2, tl.min(low, axis=0).to(tl.int64, bitcast=True))
    tl.store(row + 3, tl.max(high, axis=0).to(tl.int64, bitcast=True))
    tl.store(row + 4, tl.sum(zeros, axis=0))
    tl.store(row + 5, tl.sum(nans, axis=0))
    tl.store(row + 6, tl.sum(infs, axis=0))
    tl.store(row + 7, tl.sum(tiny, axis=0))
    tl.store(row + 8, tl.sum(total, axis=0).to(tl.int64, bitcast=True))
    tl.store(row + 9, tl.sum(squares, axis=0).to(tl.int64, bitcast=True))


@triton.jit
def lanes_kernel(
    values, signs, plan, lanes, count, row, block_size, per_group, all_lanes, infinity,
    floating: tl.constexpr, bits: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Some lanes of some blocks of the sketch."""
    lane = tl.program_id(0) * tile + tl.arange(0, tile)
    group = tl.program_id(1)
    total = tl.zeros((tile,), tl.float64)
    for number in range(per_group):
        block = (group * per_group + number).to(tl.int64)
        offset, sign, shift = (
            tl.load(plan + 3 * block),
            tl.load(plan + 3 * block + 1),
            tl.load(plan + 3 * block + 2),
        )
        place = lane - shift
        place = tl.where(place < 0, place + row, place)
        part = tl.zeros((tile,), tl.float64)
        for turn in range(rows):
            inside = turn * row + place
            mask = (lane < row) & (block * block_size + inside < count)
            element, _ = _loaded(
                values, block * block_size + inside, mask, infinity, floating, bits
            )
            part += element * tl.load(signs + offset + inside, mask=mask, other=0).to(tl.float64)
        total += part * sign.to(tl.float64)
    tl.store(lanes + group * all_lanes + lane, total, mask=lane < all_lanes)


@triton.jit
def mix_kernel(
    lanes, hadamard, mixing, sketch, parts,
    order: tl.constexpr, columns: tl.constexpr, per_row: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """The sketch's numbers of one row of the Hadamard matrix."""
    row = tl.program_id(0)
    column, place, other = tl.arange(0, padded), tl.arange(0, per_row), tl.arange(0, order)
    there = column < columns
    factors = tl.load(hadamard + row * order + other).to(tl.float64)[:, None]
    total = tl.zeros((per_row,), tl.float64)
    for part in range(parts):
        lane = (part * order + other)[:, None] * columns + column[None, :]
        mixed = tl.sum(tl.load(lanes + lane, mask=there[None, :], other=0) * factors, axis=0)
        at = ((part * order + row) * per_row + place)[:, None] * columns + column[None, :]
        signs = tl.load(mixing + at, mask=there[None, :], other=0).to(tl.float64)
        total += tl.sum(signs * mixed[None, :], axis=1)
    tl.store(sketch + row * per_row + place, total * 0.0625)


@triton.jit
def _codes(values, places, mask, infinity, bits: tl.constexpr):
    """Words of eight bytes that tell of eight elements: 0 finite, 1 NaN, 2 inf, 3 -inf."""
    word = tl.zeros_like(places).to(tl.uint64)
    for piece in tl.static_range(8):
        read = tl.load(values + places + piece, mask=mask, other=0)
        if bits == 16:
            pattern = read.to(tl.int16, bitcast=True).to(tl.int64)
        elif bits == 32:
            pattern = read.to(tl.int32, bitcast=True).to(tl.int64)
        else:
            pattern = read.to(tl.int64, bitcast=True)
        magnitude = pattern & ((1 << (bits - 1)) - 1)
        infinite = tl.where(pattern < 0, 3, 2)
        code = tl.where(magnitude > infinity, 1, tl.where(magnitude == infinity, infinite, 0))
        word |= code.to(tl.uint64) << (8 * piece)
    return word


@triton.jit
def places_kernel(
    values, table, found, chunks, digest, count, infinity,
    bits: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """XXH3-64 of a byte for each element, where some element is not finite: only the device knows whether."""
    bad = tl.zeros((1,), tl.int64)
    one = tl.arange(0, 1)
    for chunk in range(chunks):
        bad += tl.load(found + chunk * columns + 5 + one) + tl.load(
            found + chunk * columns + 6 + one
        )
    if tl.sum(bad, axis=0) > 0:
        lane, stripe = tl.arange(0, 8), tl.arange(0, 16)
        offsets = stripe[:, None] * 64 + lane[None, :] * 8
        swapped = stripe[:, None] * 64 + (lane ^ 1)[None, :] * 8
        keys = _constant(table, KEYS + stripe[:, None] + lane[None, :])
        everything = offsets >= 0
        sums = _constant(table, BEGINNING + lane)
        blocks = (count - 1) // 1024
        for block in range(blocks):
            start = block * 1024
            words = _codes(values, start + offsets, everything, infinity, bits)
            others = _codes(values, start + swapped, everything, infinity, bits)
            sums = _scrambled(sums + _added(words, others, keys), table, lane)
        start = blocks * 1024
        rest = (stripe < (count - 1 - start) // 64)[:, None] & everything
        words = _codes(values, start + offsets, rest, infinity, bits)
        others = _codes(values, start + swapped, rest, infinity, bits)
        sums += tl.sum(
            tl.where(rest, ((words ^ keys) & 0xFFFFFFFF) * ((words ^ keys) >> 32) + others, 0),
            axis=0,
        )
        each = lane[None, :] * 8
        words = _codes(values, count - 64 + each, each >= 0, infinity, bits)
        others = _codes(values, count - 64 + (each ^ 8), each >= 0, infinity, bits)
        sums += _added(words, others, _constant(table, LAST + lane)[None, :])
        length = count.to(tl.uint64) * _constant(table, PRIMES + 2)
        keys_of_merge = _constant(table, MERGE_LOW + lane)
        merged = _merged(sums, keys_of_merge, length, _constant(table, PRIMES + 1))
        tl.store(digest, merged.to(tl.int64, bitcast=True))


__all__ = ["chunk_kernel", "lanes_kernel", "mix_kernel", "places_kernel"]
