"""Arrays in a file mapped into memory, and how their pages are released after reading."""

from __future__ import annotations

import mmap
from threading import Lock

import numpy as np

from lockstep.core.records import Array


def release_pages(array: Array) -> None:
    """Give the pages of an array back to the system where they lie in a mapped file.

    They count as memory of this process for as long as it keeps them, though the file holds the same. Reading the array
    again is allowed, and takes them from the file's cache. Does nothing to arrays in ordinary memory, nor to those that
    can be written to.

    array: Any array; a view of a part of a tensor lets go of the whole tensor.
    """
    release_part(_owner(array)[0])


def release_part(array: Array) -> None:
    """Release these contiguous elements, as `release_pages` does, and the rest of their pages.

    array: Any array.
    """
    found = Pages(array).span(0, array.size)
    if found is not None:
        _give_back(*found)


class Pages:
    """The pages of a contiguous array, to be let go of part by part; of none where it lies in no mapped file.

    array: Any array.
    """

    def __init__(self, array: Array) -> None:
        whole, owner = _owner(array)
        self._file = None if whole.flags.writeable else _mapped_file(owner)
        self._width = array.itemsize
        if self._file is not None:
            self._start = _address(array) - _address(np.frombuffer(self._file, np.uint8, 1))

    def release(self, start: int, stop: int) -> None:
        """Collect the elements from start to stop for release, with the rest of their pages; see `give_back`."""
        found = self.span(start, stop)
        if found is not None:
            _later.add(*found)

    def span(self, start: int, stop: int) -> tuple[mmap.mmap, int, int] | None:
        """Return the place of elements from start to stop: the file, their first byte and the end."""
        if self._file is None or start == stop:
            return None
        return self._file, self._start + start * self._width, self._start + stop * self._width


def give_back() -> None:
    """Release now the pages that `Pages.release` collected."""
    _later.give_back()


class _Later:
    """What is to be given back, a good deal at a time.

    Each time holds up all threads of the process, and much of what is read is read again soon.
    """

    def __init__(self) -> None:
        self._spans: dict[int, tuple[mmap.mmap, int, int]] = {}
        self._size_bytes = 0
        self._lock = Lock()

    def add(self, file: mmap.mmap, start: int, stop: int) -> None:
        with self._lock:
            known = self._spans.get(id(file), (file, start, stop))
            self._spans[id(file)] = file, min(start, known[1]), max(stop, known[2])
            self._size_bytes += stop - start
        if self._size_bytes > _MOST_BYTES:
            self.give_back()

    def give_back(self) -> None:
        with self._lock:
            spans, self._spans, self._size_bytes = self._spans, {}, 0
        for span in spans.values():
            _give_back(*span)


_MOST_BYTES = 32 << 20
"""Mapped memory that is no longer needed and still counts."""

_later = _Later()


def _owner(array: Array) -> tuple[Array, object]:
    """The outermost array of a view, and what its memory belongs to."""
    whole = array
    owner: object = array.base
    while isinstance(owner, (np.ndarray, memoryview)):
        if isinstance(owner, np.ndarray):
            whole, owner = owner, owner.base
        else:
            owner = owner.obj
    return whole, owner


def _give_back(file: mmap.mmap, start: int, stop: int) -> None:
    """Give back the pages from one byte to another; pages that others read are read from the file's cache again."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    file.madvise(mmap.MADV_DONTNEED, first, stop - first)


def _mapped_file(owner: object) -> mmap.mmap | None:
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return None  # Windows keeps its own count
    return owner


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
