"""The way over two tensors: compiled and on all processors where it can be, else block by block in NumPy.

Tensors are cut into stretches of a fixed number of chunks, which several threads take in turn; what they found in each
chunk is put together in the chunks' order, so that no number depends on how many threads there were.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import local
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.mapped import release_pages, release_part
from lockstep.core.records import Array, Pieces
from lockstep.kernels.fused_formulas import GRIDS, Operand
from lockstep.kernels.jit import available
from lockstep.kernels.pair_sums import CHUNK_ELEMENTS, COUNTS, SUMS, add_chunks, add_operands
from lockstep.measure.sums import Sums, blocks, common_exponent

STRETCH_CHUNKS = 16
"""Chunks that one thread takes at a time, after which mapped memory is let go of: a millisecond of work."""

_MADE_CHUNKS = 2
"""Chunks that are read at a time where reading makes a copy: it should still be in a processor's cache when it is
measured."""

_WIDEST_BYTES = 8

_thread_memory = local()
"""Memory of each thread for what is made of either side: fresh memory has to be found and cleared by the system."""

_WORTH_THREADS = 1 << 18
"""Elements from which on a second thread is worth waking up."""

_MOST_THREADS = 8
"""A few processors read as fast as the memory gives."""


def sums_of(reference: Array | Pieces, candidate: Array | Pieces, dtype: str) -> Sums:
    """Gather all sums over two tensors of equal size; `dtype` is the one whose ULPs count.

    Arrays in a mapped file are let go of on the way.
    """
    helpers = threads() - 1 if reference.size >= _WORTH_THREADS else 0
    shared = -(-reference.size // CHUNK_ELEMENTS) // (2 * helpers + 2)
    work = Pass(reference, candidate, dtype, stretch_chunks=max(1, min(STRETCH_CHUNKS, shared)))
    numbers = itertools.count()  # its next number is taken by one thread at a time

    def take() -> None:
        while (number := next(numbers)) < work.stretches:
            work.take(number)

    others = [pool().submit(take) for _ in range(min(helpers, work.stretches - 1))]
    try:
        take()
    finally:
        for other in others:
            other.cancel()
    for other in others:
        if not other.cancelled():
            other.result()
    return work.sums()


def prepare() -> None:
    """Load the compiled pass, which takes some tenths of a second, before a tensor is there to be measured."""
    nothing = np.empty(0, np.float32)
    sums_of(nothing, nothing, "float32")


class Pass:
    """All sums over one pair of tensors of equal size, stretch by stretch, by any number of threads.

    reference, candidate: Elements face each other in row-major order.
    dtype: The one whose ULPs count.
    stretch_chunks: Chunks of one stretch; no number depends on it.

    size: Elements of either side.
    stretches: How many stretches there are; each has to be taken once.
    """

    def __init__(
        self,
        reference: Array | Pieces,
        candidate: Array | Pieces,
        dtype: str,
        *,
        stretch_chunks: int = STRETCH_CHUNKS,
    ) -> None:
        self._sides = _opened(reference), _opened(candidate)
        self._dtype = dtype
        self._grid = GRIDS.get(dtype, 0)
        self._common = _common_dtype(*self._sides, dtype)
        self.size = self._sides[0].size
        chunks = max(1, -(-self.size // CHUNK_ELEMENTS))
        self._stretch = stretch_chunks
        self.stretches = -(-chunks // self._stretch) if self._common is not None else 1
        self._refused = self._common is None
        copied = self._common is not None and any(
            _copies(side, self._common) for side in self._sides
        )
        self._at_once = _MADE_CHUNKS if copied else self._stretch
        self._operands = [_operand(side) for side in self._sides] if copied else []
        self._sums = np.zeros((chunks, len(SUMS)))
        self._counts = np.zeros((chunks, len(COUNTS)), np.int64)

    def take(self, number: int) -> None:
        """Measure one stretch."""
        if self._common is None or self._refused:
            return
        first = number * self._stretch
        last = min(first + self._stretch, len(self._sums))
        start, stop = first * CHUNK_ELEMENTS, min(last * CHUNK_ELEMENTS, self.size)
        match self._operands:
            case [Operand() as reference, Operand() as candidate]:
                rows = slice(first, last)
                add_operands(
                    reference,
                    candidate,
                    start,
                    stop,
                    grid=self._grid,
                    sums=self._sums[rows],
                    counts=self._counts[rows],
                )
            case _:
                self._take_parts(first, last, self._common)
        for side in self._sides:
            side.release(start, stop)

    def _take_parts(self, first: int, last: int, common: np.dtype[Any]) -> None:
        """Measure chunks from first to last, some at a time."""
        for chunk in range(first, last, self._at_once):
            rows = slice(chunk, min(chunk + self._at_once, last))
            start, stop = chunk * CHUNK_ELEMENTS, min(rows.stop * CHUNK_ELEMENTS, self.size)
            parts = [
                _part(side, start, stop, common, buffer)
                for side, buffer in zip(self._sides, _buffers_of_both(), strict=True)
            ]
            self._refused |= not add_chunks(
                *parts, grid=self._grid, sums=self._sums[rows], counts=self._counts[rows]
            )

    def sums(self) -> Sums:
        """Return the sums over all stretches, computed here if they could not be taken in stretches."""
        if self._refused:
            return _general(*self._sides, self._dtype)
        sums = Sums(self._dtype, 0)
        sums.merge(self.size, self._sums, self._counts)
        return sums


class _Whole:
    """An array as pieces; of strided ones each part is a copy."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.size, self.dtype = array.size, array.dtype
        self.is_made = not array.flags.c_contiguous

    def part(self, start: int, stop: int, out: Array | None = None) -> Array:
        flat: Any = self._array.flat if self.is_made else self._array.reshape(-1)
        return flat[start:stop]  # type: ignore[no-any-return]

    def release(self, start: int, stop: int) -> None:
        if self.is_made:
            release_pages(self._array)
        else:
            release_part(self.part(start, stop))


def _opened(side: Array | Pieces) -> Pieces:
    return _Whole(np.asarray(side)) if isinstance(side, (np.ndarray, np.generic)) else side


def _general(reference: Pieces, candidate: Pieces, dtype: str) -> Sums:
    """The pass for every dtype and size of numbers, in NumPy."""
    sums = Sums(dtype, common_exponent(reference, candidate))
    for left, right in zip(blocks(reference), blocks(candidate), strict=True):
        sums.add(left, right)
    for side in (reference, candidate):
        side.release(0, side.size)
    return sums


def _common_dtype(reference: Pieces, candidate: Pieces, dtype: str) -> np.dtype[Any] | None:
    """The dtype that the compiled pass takes both in; None where it cannot."""
    sides = reference.dtype, candidate.dtype
    if any(side.kind != "f" or side.itemsize > 8 for side in sides) or not available():
        return None
    if any(side.itemsize == 8 for side in sides):
        # A double is rounded to float16 in one step, which the compiled pass does not do.
        return None if dtype == "float16" else np.dtype(np.float64)
    return np.dtype(np.float32)


def _operand(side: Pieces) -> Operand | None:
    """What makes the elements of a side within the compiled pass, where that can be."""
    return getattr(side, "operand", None)


def _copies(side: Pieces, dtype: np.dtype[Any]) -> bool:
    """Whether the compiled pass takes copies of parts."""
    return side.is_made or side.dtype != dtype or not side.part(0, side.size).flags.aligned


def _part(
    side: Pieces, start: int, stop: int, dtype: np.dtype[Any], buffer: npt.NDArray[np.uint8]
) -> npt.NDArray[Any]:
    """A part as the compiled pass takes it; a view where that is possible."""
    part = side.part(start, stop, buffer.view(side.dtype) if side.is_made else None)
    if part.dtype == dtype and part.flags.aligned and part.flags.c_contiguous:
        return part
    return np.ascontiguousarray(part, dtype)


def _buffers_of_both() -> npt.NDArray[np.uint8]:
    """Memory of this thread, a row for each side."""
    try:
        found: npt.NDArray[np.uint8] = _thread_memory.both
    except AttributeError:
        found = _thread_memory.both = np.empty(
            (2, _MADE_CHUNKS * CHUNK_ELEMENTS * _WIDEST_BYTES), np.uint8
        )
    return found


def threads() -> int:
    """How many threads a comparison works with at most."""
    if hasattr(os, "sched_getaffinity"):
        return min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return min(_MOST_THREADS, os.cpu_count() or 1)


def pool() -> ThreadPoolExecutor:
    """The helping threads of this process; one that was forked off needs its own."""
    return _pool_of(os.getpid())


@lru_cache(maxsize=1)
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="lockstep-compare")
