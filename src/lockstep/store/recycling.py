"""Memory of arrays that nobody holds any more, used for the next ones.

Fresh memory has to be found and cleared by the system page by page, which takes longer than to compute a tensor.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt

from lockstep.core.records import Array

_STEP_BYTES = 256 << 10
"""Sizes are rounded up to whole steps, so that arrays of nearly the same size share memory."""

_MAX_BYTES = 16 << 20
"""The system hands out larger memory in large pages, quickly."""

_MAX_FREE = 8
"""Free pieces of each size that are kept."""

_free: dict[int, list[npt.NDArray[np.uint8]]] = {}


def empty(count: int, dtype: np.dtype[np.generic]) -> Array:
    """As `numpy.empty`, where it can be in memory that an earlier array of this function no longer needs."""
    size_bytes = -(-count * dtype.itemsize // _STEP_BYTES) * _STEP_BYTES
    if not 0 < size_bytes <= _MAX_BYTES:
        return np.empty(count, dtype)
    try:
        memory = _free.setdefault(size_bytes, []).pop()
    except IndexError:
        memory = np.empty(size_bytes, np.uint8)
    # Over a memoryview, so that a view of the array holds the array and not the memory alone.
    array: Array = np.frombuffer(memory.data, dtype, count)
    weakref.finalize(array, _give_back, memory).atexit = False
    return array


def _give_back(memory: npt.NDArray[np.uint8]) -> None:
    pieces = _free[memory.nbytes]
    if len(pieces) < _MAX_FREE:
        pieces.append(memory)
