"""Digests of a tensor's bytes: XXH3-128 of short ones, and of long ones XXH3-128 over the digests of their chunks.

So that several threads can take a digest at the speed of memory. A chunk's digest is the library's (https://xxhash.com);
`lockstep.kernels.lanes` has the same function compiled.
"""

from __future__ import annotations

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
    chunks = data.size // CHUNK
    if run is alone or chunks < 2 or not available():
        return digest_of_chunks(data, np.empty(0, np.uint64))
    sizes, digests = np.array((0, chunks), np.int64), np.empty(2 * chunks, np.uint64)
    given = addresses([address_of(array) for array in (sizes, data, digests)])
    run(of_chunks, given, chunks)
    return digest_of_chunks(data, digests)


def digest_of_chunks(data: npt.NDArray[np.uint8], digests: npt.NDArray[np.uint64]) -> str:
    """The same where digests of the first chunks are known, two numbers each, the upper half first."""
    if data.size <= CHUNK:
        return xxhash.xxh3_128_hexdigest(data.data)
    left = range(digests.size // 2 * CHUNK, data.size, CHUNK)
    rest = (xxhash.xxh3_128_digest(data[start : start + CHUNK].data) for start in left)
    return xxhash.xxh3_128_hexdigest(digests.astype(">u8").tobytes() + b"".join(rest))
