"""Round floating-point elements to a different dtype, bit by bit as torch does.

Elements are undecoded: bfloat16 as uint16, as recordings keep them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lockstep.recordings import Array

_LESS_PRECISE = {
    "float64": ("float32", "bfloat16", "float16"),
    "float32": ("bfloat16", "float16"),
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
}
"""By the dtype, the dtypes to which a cast may lose digits or range."""

_QUIET_NAN = 0x7FC0
"""The bits of the NaN that torch rounds every NaN to (c10/util/BFloat16.h, `round_to_nearest_even`)."""


def roundings_of(dtype: str) -> tuple[str, ...]:
    """Return the dtypes to which elements of this dtype are rounded when weights are handed on.

    >>> roundings_of("float32")
    ('bfloat16', 'float16')
    """
    return _LESS_PRECISE.get(dtype, ())


def rounded(elements: Array, source: str, target: str) -> Array:
    """Return elements rounded to a dtype, undecoded: to nearest, ties to even; float64 by way of float32, as in torch.

    >>> rounded(np.array([1.00390625], np.float32), "float32", "bfloat16")
    array([16256], dtype=uint16)
    """
    single = _as_float32(elements, source)
    if target == "float32":
        return single
    if target == "float16":
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return single.astype("<f2")
    return _as_bfloat16(single)


def is_exact(elements: Array, source: str, target: str) -> bool:
    """Return whether a dtype holds every element without rounding."""
    back = _as_float32(rounded(elements, source, target), target)
    whole = elements if source == "float64" else _as_float32(elements, source)
    return bool(np.array_equal(back, whole, equal_nan=True))


def _as_float32(elements: Array, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return elements.astype(np.float32, copy=False)


def _as_bfloat16(single: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = single.view(np.uint32)
    upper = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(single), np.uint32(_QUIET_NAN), upper).astype(np.uint16)


__all__ = ["is_exact", "rounded", "roundings_of"]
