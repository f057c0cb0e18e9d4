"""Move numbers to their neighbours, to measure the effect of rounding on a model."""

from __future__ import annotations

import numpy as np

from lockstep_serve.servable import Array


def neighbours(array: Array, draw: np.random.Generator) -> Array:
    """Each element times 1 - u, 1 or 1 + u at random, u the dtype's spacing at 1; whole numbers as they are."""
    if array.dtype.kind != "f":
        return array
    signs = draw.integers(-1, 2, array.shape).astype(array.dtype)
    moved: Array = np.asarray(array * (1 + np.finfo(array.dtype).eps * signs), dtype=array.dtype)
    return moved
