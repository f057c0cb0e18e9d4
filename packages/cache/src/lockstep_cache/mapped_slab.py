"""A slab as a reader maps it: private, so that what a training writes into a sample stays its own.

A large sample is a view of the file's pages as long as nobody in this process has written to them; Linux tells that of
each page (`/proc/self/pagemap`, bit 61: one of the file, no copy; Documentation/admin-guide/mm/pagemap.rst). Where it
does not, and where an earlier view of the same sample still lives, it is copied; so are small ones.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.recordings import Array
from lockstep_cache.sample_layout import (
    HEAD,
    MAGIC,
    DamagedSampleError,
    Laid,
    Make,
    check,
    made,
    plan_of,
)

_unpack = HEAD.unpack_from
_PAGE_BITS = mmap.PAGESIZE.bit_length() - 1
_NO_RESERVE = 0x4000
_COPIED_BYTES = 1 << 15
"""Up to so many a copy takes less time than asking whether pages were written to."""

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

    def of(self, start: int, size: int) -> tuple[int, int]:
        """Where the words of the pages lie that some addresses are on: their bytes, and where they begin."""
        first = start >> _PAGE_BITS
        return (((start + size - 1) >> _PAGE_BITS) - first + 1) * 8, first * 8

    def written(self, length: int, at: int) -> bool:
        """Whether some of these pages were written to; True where that cannot be told."""
        words = os.pread(self._file, length, at)
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
                return self.written(*self.of(start, page)) and not self.written(
                    *self.of(start + page, page)
                )
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


@dataclass(slots=True)
class _Given:
    """A sample that this process was given: its row, where it ends, what makes it, and its pages' words."""

    row: int
    end: int
    make: Make
    view: weakref.ref[Array]
    length: int
    at: int


class MappedSlab:
    """One of them.

    file: Its descriptor, which is closed with it.
    size: Its bytes.
    is_sealed: Whether all that it will ever hold is written.
    is_checked: Whether each sample is held against its checksum when it is read for the first time.

    Raises OSError if it cannot be mapped.
    """

    def __init__(self, file: int, size: int, *, is_sealed: bool, is_checked: bool) -> None:
        self._file = file
        try:
            self._shared = mmap.mmap(file, size, prot=mmap.PROT_READ)
            self._mapped = _map_privately(file, size)
        except (OSError, ValueError) as error:
            os.close(file)
            raise OSError(str(error)) from error
        self._bytes = memoryview(self._shared)
        self._whole: Array = np.frombuffer(self._mapped, np.uint8).view(_Bytes)
        self._start: int = self._whole.__array_interface__["data"][0]
        self._given: dict[int, _Given] = {}
        self._unchecked: set[int] | None = set() if is_checked else None
        self._is_sealed = is_sealed
        self._pages = pages()

    def sample(self, offset: int, row: int) -> Any:
        """The sample at an offset. Raises DamagedSampleError if another lies there, or none."""
        given = self._given.get(offset)
        if given is None:
            return self._first(offset, row)
        pages = self._pages
        if (
            given.row != row
            or given.view() is not None  # which may be written to at any time
            or not pages.can_tell
            or pages.written(given.length, given.at)
        ):
            return self._copied(offset, row)
        entry = self._whole[offset : given.end]
        given.view = weakref.ref(entry)
        return given.make(entry)

    def holds(self, offset: int, row: int, laid: Laid) -> bool:
        """Whether the sample at an offset is this one, byte by byte."""
        magic, description_bytes, size, found, _ = _unpack(self._bytes, offset)
        start = offset + HEAD.size
        description = self._bytes[start : start + description_bytes]
        if (magic, size, found) != (MAGIC, laid.size, row) or description != laid.description:
            return False
        if self._unchecked is not None:
            check(self._bytes[offset : offset + size])
        first = offset + laid.data_start
        whole = np.frombuffer(self._bytes, np.uint8)
        return all(
            np.array_equal(
                whole[first + at : first + at + leaf.nbytes], np.frombuffer(leaf, np.uint8)
            )
            for at, leaf in laid.leaves
            if leaf.nbytes
        )

    def _first(self, offset: int, row: int) -> Any:
        """A small sample, or one that was not given before: what its head says is kept, for a slab is never changed.

        It was never written to itself; but a neighbour on the same page may have been, before this one was there: not
        so where all was there from the beginning.
        """
        magic, description_bytes, size, found, _ = _unpack(self._bytes, offset)
        if magic != MAGIC or found != row:
            raise DamagedSampleError("another sample lies there, or none")
        if size <= _COPIED_BYTES:
            return self._copy(offset, size, description_bytes)
        where = self._pages.of(self._start + offset, size)
        if not self._is_sealed and (not self._pages.can_tell or self._pages.written(*where)):
            return self._copied(offset, row)
        entry = self._whole[offset : offset + size]
        self._look(entry, offset)
        start = offset + HEAD.size
        make = plan_of(bytes(self._bytes[start : start + description_bytes]))
        self._given[offset] = _Given(row, offset + size, make, weakref.ref(entry), *where)
        return made(make, entry)

    def _copied(self, offset: int, row: int) -> Any:
        magic, description_bytes, size, found, _ = _unpack(self._bytes, offset)
        if magic != MAGIC or found != row:
            raise DamagedSampleError("another sample lies there, or none")
        return self._copy(offset, size, description_bytes)

    def _copy(self, offset: int, size: int, description_bytes: int) -> Any:
        entry = bytearray(self._bytes[offset : offset + size])
        if len(entry) != size:
            raise DamagedSampleError("a slab ends within a sample")
        if self._unchecked is not None:
            self._look(entry, offset)
        start = offset + HEAD.size
        return made(plan_of(self._shared[start : start + description_bytes]), entry)

    def _look(self, entry: Array | bytearray, offset: int) -> None:
        if self._unchecked is not None and offset not in self._unchecked:
            check(entry)
            self._unchecked.add(offset)

    def write(self, offset: int, parts: list[bytes | memoryview]) -> None:
        """Write a sample; through the file, not the mapping. Raises OSError if not all of it could be written."""
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
        self._bytes.release()
        self._shared.close()
        try:
            self._mapped.close()
        except BufferError:
            return False
        return True


_MOST_PARTS = 512
"""Below IOV_MAX of Linux, which is 1024."""
