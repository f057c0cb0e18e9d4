"""Arrays that lie in a file mapped into memory: letting go of what was read."""

from __future__ import annotations

import mmap

import numpy as np

from lockstep.core.record import Array


def let_go(array: Array) -> None:
    """Give the pages of an array back to the system where they lie in a mapped file.

    They count as memory of this process for as long as it keeps them, though the file holds the same. Reading the array
    again is allowed, and takes them from the file's cache. Does nothing to arrays in ordinary memory, nor to those that
    can be written to.

    Parameters
    ----------
    array
        Any array; a view of a part of a tensor lets go of the whole tensor.
    """
    whole, owner = _owner(array)
    if not whole.flags.writeable:
        _give_back(whole, owner)


def let_go_part(array: Array) -> None:
    """As `let_go`, but of these elements alone, which are contiguous, and what else lies on their pages.

    Parameters
    ----------
    array
        Any array.
    """
    whole, owner = _owner(array)
    if not whole.flags.writeable:
        _give_back(array, owner)


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


def _give_back(array: Array, owner: object) -> None:
    if not isinstance(owner, mmap.mmap) or not array.nbytes:
        return
    if not hasattr(mmap, "MADV_DONTNEED"):  # Windows keeps its own count
        return
    start = _address(array) - _address(np.frombuffer(owner, np.uint8, 1))
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, first, start + array.nbytes - first)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
