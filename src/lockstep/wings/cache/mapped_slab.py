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

import numpy as np

from lockstep.core.records import Array
from lockstep.wings.cache.sample_layout import HEAD, DamagedSampleError, check, head_of

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


class MappedSlab:
    """One of them.

    Parameters
    ----------
    file
        Where it lies.
    size
        Its bytes.
    is_checked
        Whether each sample is held against its checksum when it is read for the first time.

    Raises
    ------
    OSError
        If it cannot be mapped.
    """

    def __init__(self, file: Path, size: int, *, is_checked: bool) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._mapped = _map_privately(self._file, size)
        self._whole = np.frombuffer(self._mapped, np.uint8)
        self._start: int = self._whole.__array_interface__["data"][0]
        self._living: dict[int, weakref.ref[Array]] = {}
        self._unchecked: set[int] | None = set() if is_checked else None
        self._pages = pages()

    def entry(self, offset: int, row: int) -> tuple[Array, bytes]:
        """The bytes of the sample at an offset, and its description.

        Raises
        ------
        DamagedSampleError
            If another lies there, or none.
        """
        living = self._living.get(offset)
        if not self._pages.can_tell or (living is not None and living() is not None):
            return self._copied(offset, row)
        description_bytes, size, found, _ = head_of(self._mapped[offset : offset + HEAD.size])
        if self._pages.written(self._start + offset, size):
            return self._copied(offset, row)
        if found != row:
            raise DamagedSampleError("another sample lies there")
        entry = self._whole[offset : offset + size]
        self._look(entry, offset)
        self._living[offset] = weakref.ref(entry)
        start = offset + HEAD.size
        return entry, self._mapped[start : start + description_bytes]

    def _copied(self, offset: int, row: int) -> tuple[Array, bytes]:
        description_bytes, size, found, _ = head_of(os.pread(self._file, HEAD.size, offset))
        if found != row:
            raise DamagedSampleError("another sample lies there")
        copied = bytearray(size)
        if os.preadv(self._file, [copied], offset) != size:
            raise DamagedSampleError("a slab ends within a sample")
        entry = np.frombuffer(copied, np.uint8)
        self._look(entry, offset)
        return entry, bytes(copied[HEAD.size : HEAD.size + description_bytes])

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
