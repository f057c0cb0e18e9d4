"""Statistics, digest and sketch of a tensor by Triton kernels (https://triton-lang.org), in the tensor's own memory.

The definitions are those of the CPU's kernels: XXH3-128 of chunks, bit by bit; sums in float64 in a fixed tree, without
atomics; the lanes of `lockstep.core.sketch`. A kernel reads each element once for digest and statistics, and once for
the sketch, whose lanes lie across all chunks. Nothing here waits for the device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton

from lockstep.core.sketch import COLUMNS as LANE_COLUMNS
from lockstep.core.sketch import ORDER, SKETCH_SIZE, block_plan, mixing_signs, plan_of, sign_table
from lockstep.devices.methods import data_ptr, element_size, numel, sum_, to, view
from lockstep.devices.on_device.taken import COLUMNS, chunks_of
from lockstep.devices.on_device.triton_kernels import (
    chunk_kernel,
    lanes_kernel,
    mix_kernel,
    places_kernel,
)
from lockstep.kernels import xxh3
from lockstep.kernels.xxh3 import CHUNK

_TILE = 128 if not triton.knobs.runtime.interpret else 1 << 14
"""Lanes of one program; Triton's interpreter is as slow for few as for many."""

_GROUPS = 16
_CONSTANTS = (xxh3.KEYS, xxh3.SCRAMBLE, xxh3.LAST, xxh3.MERGE_LOW, xxh3.MERGE_HIGH, xxh3.BEGINNING)
_PRIMES = (xxh3.PRIME32_1, xxh3.AVALANCHE, xxh3.PRIME64_1, xxh3.PRIME64_2)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = tuple(
    getattr(torch, name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    if hasattr(torch, name)
)
DTYPES = frozenset((*_FLOATS, *_INTEGERS, torch.bool))
"""Of all others the elements are no numbers of Triton: torch's operators take them."""


@lru_cache(maxsize=64)
def _table(device: torch.device) -> torch.Tensor:
    words = [*np.concatenate(_CONSTANTS).tolist(), *_PRIMES]
    return to(torch.from_numpy(np.array(words, np.uint64).view(np.int64)), device)


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
    return to(torch.from_numpy((1 - 2 * odd).astype(np.int8)), device)


@lru_cache(maxsize=256)
def _plan(device: torch.device, blocks: int, row: int) -> torch.Tensor:
    plans = [
        (offset, int(sign), shift % row) for offset, sign, shift in map(block_plan, range(blocks))
    ]
    return to(torch.from_numpy(np.array(plans, np.int64)), device)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whichever its arguments are on."""
    if device.type == "cpu":
        return nullcontext()
    there: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return there


def found_by_triton(
    flat: torch.Tensor, *, with_sketch: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return what is found of a contiguous tensor of shape (n,), on its device, without waiting for it.

    Parameters
    ----------
    flat
        Of one of `DTYPES`, and larger than `taken.SMALL_BYTES`.
    with_sketch
        Whether to take the sketch of a floating tensor.

    Returns
    -------
    tuple
        The rows of `taken.Taken`, its sketch or None, and its places.
    """
    if flat.dtype is torch.bool:
        flat = view(flat, torch.uint8)
    with _on(flat.device):
        return _found(flat, with_sketch=with_sketch)


def _found(
    flat: torch.Tensor, *, with_sketch: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    floating, item, count = flat.dtype.is_floating_point, element_size(flat), numel(flat)
    infinity, least = _limits(flat.dtype) if floating else (0, 0)
    table, chunks, bits = _table(flat.device), chunks_of(flat.nbytes), 8 * item
    found = torch.empty((chunks, COLUMNS), dtype=torch.int64, device=flat.device)
    places = torch.zeros(1, dtype=torch.int64, device=flat.device)
    width = 8 if data_ptr(flat) % 8 == 0 else item
    launch: Any = chunk_kernel[(chunks,)]
    launch(
        view(flat, torch.uint8), flat, table, found, flat.nbytes, count, infinity, least,
        floating=floating, bits=bits, width=width, item=item, chunk_bytes=CHUNK, columns=COLUMNS,
    )  # fmt: skip
    if not floating:
        return found, None, places
    launch = places_kernel[(1,)]
    launch(flat, table, found, chunks, places, count, infinity, bits=bits, columns=COLUMNS)
    return found, _sketched(flat, infinity) if with_sketch else None, places


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    """Infinity and the smallest normal number, as integers of their bits."""
    mantissa = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}[dtype]
    exponents = 8 * dtype.itemsize - 1 - mantissa
    return ((1 << exponents) - 1) << mantissa, 1 << mantissa


def _sketched(flat: torch.Tensor, infinity: int) -> torch.Tensor:
    count, device = numel(flat), flat.device
    law = plan_of(count)
    blocks, all_lanes = -(-count // law.block), law.parts * ORDER * LANE_COLUMNS
    groups = min(_GROUPS, blocks)
    per_group = -(-blocks // groups)
    lanes = torch.empty((groups, all_lanes), dtype=torch.float64, device=device)
    sketch = torch.empty(SKETCH_SIZE, dtype=torch.float64, device=device)
    # Groups may go past the last block, where all is masked: there is a plan up to the next power of two.
    plan = _plan(device, 1 << (groups * per_group).bit_length(), law.row)
    launch: Any = lanes_kernel[(-(-all_lanes // _TILE), groups)]
    launch(
        flat, _signs(device), plan, lanes, count, law.row, law.block, per_group, all_lanes, infinity,
        floating=True, bits=8 * element_size(flat), rows=law.block // law.row, tile=_TILE,
    )  # fmt: skip
    launch = mix_kernel[(ORDER,)]
    launch(
        sum_(lanes, 0), _hadamard(device), _mixing(device, law.parts), sketch, law.parts,
        order=ORDER, columns=LANE_COLUMNS, per_row=SKETCH_SIZE // ORDER, padded=256,
    )  # fmt: skip
    return sketch
