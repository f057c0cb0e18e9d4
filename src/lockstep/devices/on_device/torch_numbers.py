"""Statistics, digest and sketch of a tensor by torch's own operators, where there is no Triton.

The definitions are those of the CPU's kernels, as in `triton_numbers`. Slabs of some chunks are taken at a time, so
that little memory is needed beside the tensor's. Only where an element is not finite are the elements read on the host.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch.nn.functional import pad

from lockstep.core.sketch import COLUMNS as LANE_COLUMNS
from lockstep.core.sketch import ORDER, SKETCH_SIZE, block_plan, mixing_signs, plan_of, sign_table
from lockstep.devices.methods import double, item, narrow, numel, storage_offset, sum_, to, view
from lockstep.devices.on_device.taken import (
    COLUMNS,
    INFS,
    LOWER,
    MAXIMUM,
    MINIMUM,
    NANS,
    SHORTEST,
    SQUARES,
    SUM,
    TINY,
    UPPER,
    ZEROS,
    chunks_of,
    last_size,
)
from lockstep.devices.tensor_numbers import real_part, where_not_finite
from lockstep.kernels import xxh3
from lockstep.kernels.xxh3 import BLOCK, BLOCK_STRIPES, CHUNK, STRIPE

_SLAB = 16
"""Chunks that are taken together."""

_LOW = 0xFFFF_FFFF


def found_by_torch(
    flat: torch.Tensor, *, with_sketch: bool
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Return what is found of a contiguous tensor of shape (n,), on its device; see `taken.Taken`."""
    chunks, last = chunks_of(flat.nbytes), last_size(flat.nbytes)
    per_chunk = CHUNK // flat.dtype.itemsize
    found = torch.zeros((chunks, COLUMNS), dtype=torch.int64, device=flat.device)
    for first in range(0, chunks - 1, _SLAB):
        count = min(_SLAB, chunks - 1 - first)
        part = narrow(flat, 0, first * per_chunk, count * per_chunk)
        _take(part, count, narrow(found, 0, first, count))
    rest = narrow(flat, 0, (chunks - 1) * per_chunk, last // flat.dtype.itemsize)
    _take(rest, 1, narrow(found, 0, chunks - 1, 1))
    rounds = flat.dtype.is_floating_point or flat.dtype.is_complex
    bad = rounds and bool(item(torch.any(narrow(found, 1, NANS, 2))))
    places = int(where_not_finite(flat), 16) if bad else 0
    return found, _sketched(flat) if with_sketch and rounds else None, places


def _take(part: torch.Tensor, chunks: int, rows: torch.Tensor) -> None:
    """Take equal chunks that lie behind each other."""
    size = part.nbytes // chunks
    if size >= SHORTEST:
        rows[:, UPPER], rows[:, LOWER] = _digests(_bytes(part), chunks, size)
    numbers = torch.abs(part) if part.dtype.is_complex else real_part(part)
    _count(view(numbers, chunks, -1), part.dtype, rows)


def _bytes(part: torch.Tensor) -> torch.Tensor:
    """The bytes of a part, where they can be read as words."""
    if part.dtype is torch.bool or storage_offset(part) * part.dtype.itemsize % 8:
        part = torch.clone(part)
    return view(part, torch.uint8)


def _count(numbers: torch.Tensor, dtype: torch.dtype, rows: torch.Tensor) -> None:
    """Statistics of each row of numbers."""
    rounds = dtype.is_floating_point or dtype.is_complex
    doubles = double(numbers)
    finite = torch.isfinite(doubles)
    kept = torch.where(finite, doubles, 0.0)
    low, high = torch.where(finite, doubles, torch.inf), torch.where(finite, doubles, -torch.inf)
    rows[:, MINIMUM] = view(torch.amin(low, 1), torch.int64)
    rows[:, MAXIMUM] = view(torch.amax(high, 1), torch.int64)
    rows[:, ZEROS] = sum_(doubles == 0, 1)
    rows[:, NANS] = sum_(torch.isnan(doubles), 1)
    rows[:, INFS] = sum_(torch.isinf(doubles), 1)
    if rounds:
        rows[:, TINY] = sum_(torch.abs(doubles) < torch.finfo(dtype).smallest_normal, 1)
    rows[:, SUM] = view(sum_(kept, 1), torch.int64)
    rows[:, SQUARES] = view(sum_(kept * kept, 1), torch.int64)


# ------------------------------------------------------------------------------------- digest


@lru_cache(maxsize=64)
def _words(device: torch.device, name: str) -> torch.Tensor:
    return to(torch.from_numpy(getattr(xxh3, name).view(np.int64)), device)


def _signed(number: int) -> int:
    """A 64-bit number as torch has it: the same bits with a sign."""
    return int(np.uint64(number & 0xFFFF_FFFF_FFFF_FFFF).astype(np.int64))


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings zeros."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _added(stripes: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """What stripes, of shape (..., stripes, 8), add to the eight sums."""
    keyed = stripes ^ keys
    products = sum_((keyed & _LOW) * _shifted(keyed, 32), -2)
    return products + _neighbours(sum_(stripes, -2))


def _neighbours(sums: torch.Tensor) -> torch.Tensor:
    """Sums of which each pair is the other way around."""
    return view(torch.flip(view(sums, *sums.shape[:-1], 4, 2), (-1,)), sums.shape)


def _digests(data: torch.Tensor, chunks: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """XXH3-128 of chunks of one size, at least `SHORTEST`: upper and lower halves."""
    device, blocks = data.device, (size - 1) // BLOCK
    keys = _words(device, "KEYS")
    each = torch.stack([narrow(keys, 0, stripe, 8) for stripe in range(BLOCK_STRIPES)])
    rows = view(data, chunks, size)
    sums = _words(device, "BEGINNING").expand(chunks, 8)
    if blocks:
        added = _added(_striped(rows, 0, blocks * BLOCK_STRIPES).view(chunks, blocks, -1, 8), each)
        for block in range(blocks):
            sums = sums + added[:, block]
            mixed = sums ^ _shifted(sums, 47) ^ _words(device, "SCRAMBLE")
            sums = mixed * xxh3.PRIME32_1
    stripes = (size - 1 - blocks * BLOCK) // STRIPE
    if stripes:
        sums = sums + _added(_striped(rows, blocks * BLOCK, stripes), narrow(each, 0, 0, stripes))
    sums = sums + _added(_striped(rows, size - STRIPE, 1), _words(device, "LAST"))
    starts = size * xxh3.PRIME64_1, ~(size * xxh3.PRIME64_2)
    lower, upper = (
        _merged(sums ^ _words(device, name), _signed(start))
        for name, start in zip(("MERGE_LOW", "MERGE_HIGH"), starts, strict=True)
    )
    return upper, lower


def _striped(rows: torch.Tensor, start: int, stripes: int) -> torch.Tensor:
    """Stripes of each row as words, int64 of shape (rows, stripes, 8)."""
    part = torch.clone(
        narrow(rows, 1, start, stripes * STRIPE), memory_format=torch.contiguous_format
    )
    return view(view(part, torch.int64), len(rows), stripes, 8)


def _merged(keyed: torch.Tensor, start: int) -> torch.Tensor:
    result = start + sum_(_folded(keyed[:, 0::2], keyed[:, 1::2]), 1)
    result = (result ^ _shifted(result, 37)) * xxh3.AVALANCHE
    return result ^ _shifted(result, 32)


def _folded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The upper half of a product of two 64-bit numbers, combined with the lower by exclusive or."""
    left_high, left_low = _shifted(left, 32), left & _LOW
    right_high, right_low = _shifted(right, 32), right & _LOW
    low = left_low * right_low
    first, second = left_high * right_low, left_low * right_high
    carry = _shifted(low, 32) + (first & _LOW) + (second & _LOW)
    upper = (
        left_high * right_high + _shifted(first, 32) + _shifted(second, 32) + _shifted(carry, 32)
    )
    return upper ^ (left * right)


# ------------------------------------------------------------------------------------- sketch


@lru_cache(maxsize=64)
def _signs(device: torch.device) -> torch.Tensor:
    return to(torch.from_numpy(sign_table()), device)


@lru_cache(maxsize=64)
def _mixing(device: torch.device, parts: int) -> torch.Tensor:
    return to(torch.from_numpy(mixing_signs(parts)), device)


@lru_cache(maxsize=64)
def _hadamard(device: torch.device) -> torch.Tensor:
    rows = np.arange(ORDER)
    odd = np.array([[bin(row & column).count("1") % 2 for column in rows] for row in rows])
    return to(torch.from_numpy((1.0 - 2.0 * odd)[:, :, None]), device)


def _sketched(flat: torch.Tensor) -> torch.Tensor:
    """The sketch, float64 of shape (SKETCH_SIZE,); of more than SKETCH_SIZE elements."""
    if flat.dtype.is_complex:
        flat = view(torch.view_as_real(flat), -1)
    law = plan_of(numel(flat))
    lanes = torch.zeros(law.row, dtype=torch.float64, device=flat.device)
    for block, start in enumerate(range(0, numel(flat), law.block)):
        part = narrow(flat, 0, start, min(law.block, numel(flat) - start))
        lanes += _block_lanes(part, block, law.row)
    missing = law.parts * ORDER * LANE_COLUMNS - law.row
    parts = view(pad(lanes, (0, missing)), law.parts, ORDER, LANE_COLUMNS)
    sketch = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=flat.device)
    for lanes_of_part, signs in zip(parts, _mixing(flat.device, law.parts), strict=True):
        mixed = sum_(_hadamard(flat.device) * lanes_of_part, 1)
        sketch += view(sum_(signs * mixed[:, None], -1), -1)
    return torch.div(sketch, SKETCH_SIZE**0.5)


def _block_lanes(part: torch.Tensor, block: int, row: int) -> torch.Tensor:
    """What one block adds to the lanes."""
    offset, sign, shift = block_plan(block)
    doubles = double(real_part(part))
    kept = torch.where(torch.isfinite(doubles), doubles, 0.0)
    signed = kept * narrow(_signs(part.device), 0, offset, numel(part))
    rows = view(pad(signed, (0, -numel(part) % row)), -1, row)
    lanes: torch.Tensor = torch.roll(sum_(rows, 0), shift % row) * sign
    return lanes
