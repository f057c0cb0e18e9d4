"""Looking for cyclic garbage no more often than a comparison needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cyclic garbage rarely while the block runs.

    A comparison makes some ten objects a tensor that live to its end and form no cycles; looking at
    them again and again took a fifth of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_OBJECTS_PER_COLLECTION = 200_000
"""New objects after which the young ones are looked through; Python's own is 700."""
