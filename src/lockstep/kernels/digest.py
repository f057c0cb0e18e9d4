"""Digests of a tensor's bytes: XXH3-128 of short ones, and of long ones XXH3-128 over the digests of their chunks.

So that several threads can take a digest at the speed of memory. A chunk's digest is the library's (https://xxhash.com);
`lockstep.kernels.lanes` has the same function compiled.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import xxhash

from lockstep.kernels.jit import available
from lockstep.kernels.lanes import of_chunks
from lockstep.kernels.team import Runner, address_of, addresses, alone
from lockstep.kernels.xxh3 import CHUNK


def digest_of_bytes(data: npt.NDArray[np.uint8], run: Runner = alone) -> str:
    """Digest of bytes, shape (n,), contiguous, as 32 hex digits; `run` takes the chunks of many.

    Examples
    --------
    >>> digest_of_bytes(np.zeros(0, np.uint8))
    '99aa06d3014798d86001c324468d497f'
    """
    return digest_of_memory(address_of(data), data.size, run)


def digest_of_memory(address: int, size_bytes: int, run: Runner = alone) -> str:
    """The same of so many bytes at an address."""
    chunks = size_bytes // CHUNK
    if run is alone or chunks < 2 or not available():
        return digest_of_chunks(address, size_bytes, _NO_DIGESTS)
    sizes, digests = np.array((0, chunks), np.int64), np.empty(2 * chunks, np.uint64)
    run(of_chunks, addresses((address_of(sizes), address, address_of(digests))), chunks)
    return digest_of_chunks(address, size_bytes, digests)


_NO_DIGESTS = np.empty(0, np.uint64)


def digest_of_chunks(address: int, size_bytes: int, digests: npt.NDArray[np.uint64]) -> str:
    """The same where digests of the first chunks are known, two numbers each, the upper half first."""
    if size_bytes <= CHUNK:
        return xxhash.xxh3_128_hexdigest(_memory(address, size_bytes))
    left = range(digests.size // 2 * CHUNK, size_bytes, CHUNK)
    rest = [
        xxhash.xxh3_128_digest(_memory(address + start, min(CHUNK, size_bytes - start)))
        for start in left
    ]
    return xxhash.xxh3_128_hexdigest(digests.astype(">u8").tobytes() + b"".join(rest))


def _memory(address: int, size_bytes: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * size_bytes).from_address(address)
