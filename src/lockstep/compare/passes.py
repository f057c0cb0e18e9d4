"""The way over two arrays: compiled and on all processors where it can be, else block by block in NumPy.

Large arrays are cut into chunks of a fixed size, which several threads take in turn; what they found is put together in
the chunks' order, so that no number depends on how many threads there were.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.compare.sums import Sums, blocks, common_exponent
from lockstep.core.mapped import let_go
from lockstep.core.record import Array
from lockstep.kernels.jit import available
from lockstep.kernels.metrics import COUNTS, GRIDS, SUMS, add_arrays, merge_chunks

CHUNK_ELEMENTS = 1 << 16
"""Elements of one chunk: some ten microseconds of work."""

_STRETCH_CHUNKS = 256
"""Chunks after which mapped memory is let go of."""

_WORTH_THREADS = 1 << 18
"""Elements from which on a second thread is worth waking up."""

_MOST_THREADS = 8
"""A few processors read as fast as the memory gives."""


def sums_of(reference: Array, candidate: Array, dtype: str) -> Sums:
    """Gather all sums over two arrays of equal size; `dtype` is the one whose ULPs count.

    Arrays in a mapped file are let go of on the way.
    """
    common = _common_dtype(reference, candidate, dtype)
    found = None if common is None else _compiled(reference, candidate, dtype, common)
    if found is None:
        found = _general(reference, candidate, dtype)
        _let_go(reference, candidate)
    return found


def _general(reference: Array, candidate: Array, dtype: str) -> Sums:
    """The pass for every dtype and size of numbers, in NumPy."""
    sums = Sums(dtype, common_exponent(reference, candidate))
    for left, right in zip(blocks(reference), blocks(candidate), strict=True):
        sums.add(left, right)
    return sums


def _common_dtype(reference: Array, candidate: Array, dtype: str) -> np.dtype[Any] | None:
    """The dtype that the compiled pass takes both in; None where it cannot."""
    sides = reference.dtype, candidate.dtype
    if any(side.kind != "f" or side.itemsize > 8 for side in sides) or not available():
        return None
    if any(side.itemsize == 8 for side in sides):
        # A double is rounded to float16 in one step, which the compiled pass does not do.
        return None if dtype == "float16" else np.dtype(np.float64)
    return np.dtype(np.float32)


def _compiled(reference: Array, candidate: Array, dtype: str, common: np.dtype[Any]) -> Sums | None:
    """The compiled pass; None where it met doubles of a size that it cannot add."""
    chunks = max(1, -(-reference.size // CHUNK_ELEMENTS))
    work = _Work(reference, candidate, common, GRIDS.get(dtype, 0), chunks)
    threads = min(_threads(), chunks) if reference.size >= _WORTH_THREADS else 1
    for first in range(0, chunks, _STRETCH_CHUNKS):
        stretch = [
            range(first + n, min(first + _STRETCH_CHUNKS, chunks), threads) for n in range(threads)
        ]
        others = [_pool(os.getpid()).submit(work.take, own) for own in stretch[1:]]
        work.take(stretch[0])
        for other in others:
            other.result()
        _let_go(reference, candidate)
    if work.refused:
        return None
    sums = Sums(dtype, 0)
    sums.merge(reference.size, work.total())
    return sums


class _Work:
    """The chunks of one pair of arrays, and what was found in each."""

    def __init__(
        self,
        reference: Array,
        candidate: Array,
        common: np.dtype[Any],
        grid: int,
        chunks: int,
    ) -> None:
        self.sums = np.zeros((chunks, len(SUMS)))
        self.counts = np.zeros((chunks, len(COUNTS)), np.int64)
        self.refused = False
        self._sides = reference, candidate
        self._common = common
        self._grid = grid

    def take(self, own: range) -> None:
        """Do the chunks of these numbers."""
        reference, candidate = (_flat(side) for side in self._sides)
        for chunk in own:
            if self.refused:
                return
            start = chunk * CHUNK_ELEMENTS
            self.refused |= not add_arrays(
                _part(reference, start, self._common),
                _part(candidate, start, self._common),
                grid=self._grid,
                sums=self.sums[chunk],
                counts=self.counts[chunk],
            )

    def total(self) -> dict[str, float]:
        """All chunks together, by the names of `Sums`."""
        first = merge_chunks(self.sums, self.counts)
        return dict(zip((*SUMS, *COUNTS), (*first[0], *first[1]), strict=True))


def _let_go(*arrays: Array) -> None:
    for array in arrays:
        let_go(array)


def _flat(array: Array) -> Any:
    """All elements in row-major order, to be sliced; each thread needs its own where they are strided."""
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def _part(flat: Any, start: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One chunk, as the compiled pass takes it; a view where that is possible."""
    part = flat[start : start + CHUNK_ELEMENTS]
    if part.dtype == dtype and part.flags.aligned:
        return part  # type: ignore[no-any-return]
    return part.astype(dtype)  # type: ignore[no-any-return]


def _threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return min(_MOST_THREADS, os.cpu_count() or 1)


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    """The helping threads of one process; a process that was forked off needs its own."""
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="lockstep-compare")
