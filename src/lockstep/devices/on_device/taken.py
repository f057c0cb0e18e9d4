"""What a device found about a tensor, chunk by chunk, and the numbers that the host makes of it.

A digest is defined over chunks (`lockstep.kernels.digest`), so each chunk is one piece of work on a device. What is
found of a chunk is a row of ten 64-bit numbers; the rows are put together here, in order, so that no number depends on
which chunk was done first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from lockstep.core.records import Statistics
from lockstep.kernels.xxh3 import CHUNK

COLUMNS = 10
UPPER, LOWER, MINIMUM, MAXIMUM, ZEROS, NANS, INFS, TINY, SUM, SQUARES = range(COLUMNS)
"""Columns of a chunk's row: both halves of its digest, then its statistics; floating ones as bits of a float64."""

SHORTEST = 241
"""Bytes from which on XXH3 is a loop over stripes; it has other rules for less, which only the host knows."""

SMALL_BYTES = 2048
"""Up to this size a tensor is copied as it is: that is no more than what would be found of it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was found, on the host.

    chunks: int64 of shape (chunks, COLUMNS).
    last_bytes: The bytes of the last chunk where it is shorter than `SHORTEST`, else empty.
    sketch: float64 of shape (SKETCH_SIZE,), or None.
    places: XXH3-64 of where the tensor is not finite, as `lockstep.kernels.not_finite` defines it; it counts only where
        there is such an element.
    """

    chunks: npt.NDArray[np.int64]
    last_bytes: npt.NDArray[np.uint8]
    sketch: npt.NDArray[np.float64] | None
    places: int


def digest(taken: Taken) -> str:
    """Return the digest of all bytes, as `lockstep.kernels.digest` defines it."""
    halves = taken.chunks[:, [UPPER, LOWER]].astype(">i8")
    if taken.last_bytes.size:
        whole = halves[:-1].tobytes() + xxhash.xxh3_128_digest(taken.last_bytes.tobytes())
    else:
        whole = halves.tobytes()
    return whole.hex() if len(taken.chunks) == 1 else xxhash.xxh3_128_hexdigest(whole)


def statistics(taken: Taken, count: int, *, counts_tiny: bool) -> Statistics:
    """Return the statistics of `count` elements; `counts_tiny` where their dtype has subnormal numbers."""
    rows, numbers = taken.chunks, taken.chunks.view(np.float64)
    zeros, nans, infinities, tiny = (int(rows[:, one].sum()) for one in (ZEROS, NANS, INFS, TINY))
    finite = count - nans - infinities
    return Statistics(
        minimum=float(numbers[:, MINIMUM].min()) if finite else math.nan,
        maximum=float(numbers[:, MAXIMUM].max()) if finite else math.nan,
        mean=float(numbers[:, SUM].sum()) / finite if finite else math.nan,
        norm=math.sqrt(numbers[:, SQUARES].sum()),
        nan_count=nans,
        inf_count=infinities,
        zero_count=zeros,
        subnormal_count=tiny - zeros if counts_tiny else 0,
        not_finite=f"{taken.places & (1 << 64) - 1:016x}" if nans or infinities else None,
    )


def chunks_of(size_bytes: int) -> int:
    """Return how many chunks so many bytes have."""
    return -(-size_bytes // CHUNK)


def last_size(size_bytes: int) -> int:
    """Return the bytes of the last chunk."""
    return size_bytes - (chunks_of(size_bytes) - 1) * CHUNK
