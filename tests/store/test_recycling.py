"""Memory that is used again: never while somebody still looks at it."""

from __future__ import annotations

import gc

import numpy as np

from lockstep.store.recycling import empty

FLOATS = np.dtype("<f4")
COUNT = 70_000


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    # given an array, and a view of a view of it that outlives it
    array = empty(COUNT, FLOATS)
    array[:] = 1
    address = array.ctypes.data
    view = array[10:].reshape(-1, 10)[::2].T
    del array
    gc.collect()
    # when others are made
    others = [empty(COUNT - number, FLOATS) for number in range(3)]
    for other in others:
        other[:] = 2
    # then none of them is in its memory, until the view has gone too
    assert address not in {other.ctypes.data for other in others}
    assert (view == 1).all()
    del view
    gc.collect()
    assert empty(COUNT, FLOATS).ctypes.data == address


def test_small_and_large_arrays_and_nothing_are_made_too() -> None:
    for count in (0, 1, 5_000_000):
        array = empty(count, FLOATS)
        array[:] = 3
        assert array.shape == (count,)
