"""A slab as a reader maps it: private, so that what a training writes into a sample stays its own.

A sample is a view of the file's pages as long as nobody in this process has written to them; Linux tells that of each
page (`/proc/self/pagemap`, bit 61: a page of the file, not a copy; Documentation/admin-guide/mm/pagemap.rst). Where
it does not, and where an earlier view of the same sample still lives, the sample is read from the file, as a copy.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.core.records import Array
from lockstep.wings.cache.sample_layout import (
    HEAD,
    MAGIC,
    DamagedSampleError,
    check,
    head_of,
    sample_of,
)

_unpack = HEAD.unpack_from
_PAGE_BITS = mmap.PAGESIZE.bit_length() - 1
_NO_RESERVE = 0x4000
_CLEAN = bytes(one for one in range(256) if not one & 0xC0 or one & 0x20)
"""The highest byte of a page's word: neither present nor swapped out, or of the file."""


class Pages:
    """Says which pages of this process are copies of its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        try:
            self._file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self.can_tell = self._file >= 0 and self._tells()

    def written(self, start: int, size: int) -> bool:
        """Whether some page that these addresses lie on was written to; True where that cannot be told."""
        first = start >> _PAGE_BITS
        length = (((start + size - 1) >> _PAGE_BITS) - first + 1) * 8
        words = os.pread(self._file, length, first * 8)
        return len(words) != length or bool(words[7::8].translate(None, _CLEAN))

    def _tells(self) -> bool:
        """Try it on a file of two pages, one of them written to: some sandboxes have the file and tell nothing."""
        with tempfile.TemporaryFile() as file:
            file.truncate(2 * mmap.PAGESIZE)
            mapped = _map_privately(file.fileno(), 2 * mmap.PAGESIZE)
            whole = np.frombuffer(mapped, np.uint8)
            whole.sum()
            whole[0] = 1
            start = whole.__array_interface__["data"][0]
            page = mmap.PAGESIZE
            try:
                return self.written(start, page) and not self.written(start + page, page)
            except OSError:
                return False


def pages() -> Pages:
    """Those of this process: a forked one has its own."""
    global _pages
    if _pages is None or _pages._process != os.getpid():
        _pages = Pages()
    return _pages


_pages: Pages | None = None


def _map_privately(descriptor: int, size: int) -> mmap.mmap:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=protection)


class _Bytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """A slab's bytes. NumPy lets a view of a view hold the first array alone, unless that is of a class of its own: so
    all views of a sample hold the part of the slab that is the sample's, and while one of them lives, that does."""


class MappedSlab:
    """One of them.

    Parameters
    ----------
    file
        Where it lies.
    size
        Its bytes.
    is_sealed
        Whether all that it will ever hold is written.
    is_checked
        Whether each sample is held against its checksum when it is read for the first time.

    Raises
    ------
    OSError
        If it cannot be mapped.
    """

    def __init__(self, file: Path, size: int, *, is_sealed: bool, is_checked: bool) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._mapped = _map_privately(self._file, size)
        self._whole: Array = np.frombuffer(self._mapped, np.uint8).view(_Bytes)
        self._start: int = self._whole.__array_interface__["data"][0]
        self._given: dict[int, weakref.ref[Array]] = {}
        self._unchecked: set[int] | None = set() if is_checked else None
        self._is_sealed = is_sealed
        self._pages = pages()

    def sample(self, offset: int, row: int) -> Any:
        """The sample at an offset.

        Raises
        ------
        DamagedSampleError
            If another lies there, or none.
        """
        magic, description_bytes, size, found, _ = _unpack(self._mapped, offset)
        if magic != MAGIC or found != row or self._is_written(offset, size):
            return self._copied(offset, row)
        entry = self._whole[offset : offset + size]
        if self._unchecked is not None:
            self._look(entry, offset)
        self._given[offset] = weakref.ref(entry)
        start = offset + HEAD.size
        return sample_of(entry, self._mapped[start : start + description_bytes])

    def _is_written(self, offset: int, size: int) -> bool:
        """Whether this process may have written to a sample's pages, or has an earlier view of it still.

        What was never given was never written to; but a neighbour on the same page may have been, before this one
        was there: not so where all was there from the beginning.
        """
        given = self._given.get(offset)
        if given is None and self._is_sealed:
            return False
        if given is not None and given() is not None:
            return True
        return not self._pages.can_tell or self._pages.written(self._start + offset, size)

    def _copied(self, offset: int, row: int) -> Any:
        description_bytes, size, found, _ = head_of(os.pread(self._file, HEAD.size, offset))
        if found != row:
            raise DamagedSampleError("another sample lies there")
        copied = bytearray(size)
        if os.preadv(self._file, [copied], offset) != size:
            raise DamagedSampleError("a slab ends within a sample")
        entry = np.frombuffer(copied, np.uint8)
        self._look(entry, offset)
        return sample_of(entry, bytes(copied[HEAD.size : HEAD.size + description_bytes]))

    def _look(self, entry: Array, offset: int) -> None:
        if self._unchecked is not None and offset not in self._unchecked:
            check(entry)
            self._unchecked.add(offset)

    def write(self, offset: int, parts: list[bytes | memoryview]) -> None:
        """Write a sample; through the file, not the mapping.

        Raises
        ------
        OSError
            If not all of it could be written.
        """
        for first in range(0, len(parts), _MOST_PARTS):
            some = parts[first : first + _MOST_PARTS]
            size = sum(memoryview(one).nbytes for one in some)
            if os.pwritev(self._file, some, offset) != size:
                raise OSError("a slab could not be written to")
            offset += size

    def close(self) -> bool:
        """Let go of it; False while some view lives, which keeps the mapping."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._whole = np.empty(0, np.uint8)
        try:
            self._mapped.close()
        except BufferError:
            return False
        return True


_MOST_PARTS = 512
"""Below IOV_MAX of Linux, which is 1024."""
