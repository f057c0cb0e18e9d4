"""Tensors handed to another process: their bytes in memory that both have mapped, the rest in a line of JSON."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lockstep_serve.protocol.tensors import (
    datatype_of,
    dtype_of,
    raw_from_tensor,
    tensor_from_raw,
)
from lockstep_serve.servable import BYTES, Array

LENGTH = struct.Struct("<I")
"""The length of a line of JSON, which stands before it."""

_ALIGNED = 64
"""Where a tensor begins: at a cache line."""


class SharedRegion:
    """Memory of a nameless file that two processes have open; it grows, and ends with the last of them.

    descriptor: Of the file; a new one without.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _nameless_file() if descriptor is None else descriptor
        self._mapped: mmap.mmap | None = None

    def write(
        self, tensors: Mapping[str, Array], start: int = 0
    ) -> tuple[list[tuple[Any, ...]], int]:
        """Put tensors there.

        Returns
        -------
        tuple
            Of each its name, datatype, shape, offset and length in bytes; and where the last of them ends.
        """
        raw = {name: raw_from_tensor(one) for name, one in tensors.items() if one.dtype == BYTES}
        table, at = [], start
        for name, one in tensors.items():
            at = -(-at // _ALIGNED) * _ALIGNED
            size = len(raw[name]) if name in raw else one.nbytes
            table.append((name, datatype_of(one.dtype), list(one.shape), at, size))
            at += size
        memory = self._memory(at)
        for name, _, shape, offset, size in table:
            if name in raw:
                memory[offset : offset + size] = raw[name]
            elif size:
                one = tensors[name]
                np.ndarray(tuple(shape), one.dtype, memory, offset)[...] = one
        return table, at

    def read(self, table: Iterable[tuple[Any, ...]]) -> dict[str, Array]:
        """Tensors that the other process has put there, as views: they hold until the next are put there."""
        rows = list(table)
        memory = self._memory(max((row[3] + row[4] for row in rows), default=0))
        return {
            name: tensor_from_raw(name, datatype, tuple(shape), memory[offset : offset + size])
            if datatype == "BYTES" or not size
            else np.ndarray(tuple(shape), dtype_of(datatype, name), memory, offset)
            for name, datatype, shape, offset, size in rows
        }

    def _memory(self, size: int) -> mmap.mmap:
        if self._mapped is None or len(self._mapped) < size:
            whole = max(os.fstat(self.descriptor).st_size, mmap.PAGESIZE)
            if whole < size:
                whole = -(-2 * size // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.fstat(self.descriptor).st_size < whole:
                os.ftruncate(self.descriptor, whole)
            self._mapped = mmap.mmap(self.descriptor, whole)
        return self._mapped

    def close(self) -> None:
        """Let go of the file; views that are still held keep the memory."""
        self._mapped = None
        os.close(self.descriptor)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):  # bounded by no mount: /dev/shm has 64 MB in a container
        return os.memfd_create("lockstep-serve")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
