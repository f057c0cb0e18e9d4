"""The plan of the linear sketch: which sign and which bucket every element gets.

A sketch is `S x` for a fixed random matrix `S` with `SKETCH_SIZE` rows, so the sketch of a difference is the difference
of the sketches. Each column of `S` holds a single +1 or -1 (a CountSketch: Charikar, Chen, Farach-Colton, ICALP 2002;
as a distance estimator: Thorup and Zhang, SODA 2004). `E |S d|^2 = |d|^2` and, for elements spread over the buckets,
`Var(|S d|^2) ~ 2 |d|^4 / SKETCH_SIZE`, hence a relative standard deviation of the estimated distance of
`1 / sqrt(2 SKETCH_SIZE)` = 4.4 %.

Element `i` (row-major order) lies in row `i // ROW` and lane `i % ROW`. Its sign is `table[i + offset(block)] *
sign(block)`, with a fresh offset and a fresh block sign for every block of `BLOCK_ROWS` rows, so that neither constant
nor periodic differences line up between blocks. Rows are summed first; then every lane goes to a random bucket with
a random sign. `ROW` is prime so that one channel of a usual layout visits all lanes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

SKETCH_SIZE = 256
ROW = 4099
BLOCK_ROWS = 64
BLOCK = ROW * BLOCK_ROWS
_TABLE = 4 * BLOCK
_SEED = 0x10C4_57E9


@lru_cache(maxsize=1)
def sign_table() -> npt.NDArray[np.float32]:
    """Signs (+1 or -1), float32, long enough that any block offset fits."""
    bits = np.random.Generator(np.random.PCG64(_SEED)).integers(0, 2, _TABLE, dtype=np.int8)
    return (bits * 2 - 1).astype(np.float32)


@lru_cache(maxsize=1)
def lane_plan() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Bucket (0 .. SKETCH_SIZE - 1) and sign of every lane, each of shape (ROW,)."""
    generator = np.random.Generator(np.random.PCG64(_SEED + 1))
    buckets = generator.integers(0, SKETCH_SIZE, ROW, dtype=np.int64)
    return buckets, generator.integers(0, 2, ROW).astype(np.float64) * 2 - 1


def block_plan(block: int) -> tuple[int, float]:
    """Offset into the sign table, and the sign, of one block of elements."""
    mixed = (block * 0x9E37_79B9_7F4A_7C15 + _SEED) & 0xFFFF_FFFF_FFFF_FFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & 0xFFFF_FFFF_FFFF_FFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & 0xFFFF_FFFF_FFFF_FFFF
    mixed ^= mixed >> 31
    return int(mixed >> 1) % (_TABLE - BLOCK + 1), 1.0 if mixed & 1 else -1.0


def sketch_of(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Sketch an array in double precision: the reference that device kernels are tested against.

    Non-finite elements count as zero. Returns float64 of shape (SKETCH_SIZE,).
    """
    flat = np.nan_to_num(
        np.asarray(values, dtype=np.float64).ravel(), nan=0.0, posinf=0.0, neginf=0.0
    )
    table, lanes = sign_table(), np.zeros(ROW)
    for block, start in enumerate(range(0, flat.size, BLOCK)):
        part = flat[start : start + BLOCK]
        offset, sign = block_plan(block)
        padded = np.zeros(-(-part.size // ROW) * ROW)
        padded[: part.size] = part * table[offset : offset + part.size]
        lanes += sign * padded.reshape(-1, ROW).sum(axis=0)
    return fold_lanes(lanes)


def fold_lanes(lanes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Add ROW lane sums into SKETCH_SIZE buckets with their signs."""
    buckets, signs = lane_plan()
    folded = np.bincount(buckets, weights=lanes * signs, minlength=SKETCH_SIZE)
    return folded.astype(np.float64, copy=False)


def distance(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> float:
    """Estimated Euclidean distance of two tensors from their sketches, in the tensors' unit."""
    return float(np.linalg.norm(left - right))
