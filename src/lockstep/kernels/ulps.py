"""How many numbers of a dtype lie between two: parts of the compiled pass over two arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.kernels.jit import inlined

GRIDS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 5}
"""Numbers that ULPs are counted on, by dtype: how wide they are, or for float16, which is no shorter single, how wide
their exponent is."""


@inlined
def _bfloat16_place(number: Any) -> Any:
    """Place among the bfloat16 numbers: the upper half of a single, rounded to nearest even."""
    bits = np.int64(np.float32(number).view(np.int32))
    size = bits & 0x7FFF_FFFF
    size = (size + 0x7FFF + ((size >> 16) & 1)) >> 16
    return -size if bits < 0 else size


@inlined
def _float16_place(number: Any) -> Any:
    """Place among the float16 numbers, rounded to nearest even; 0.5 has the spacing of the subnormal ones."""
    size = abs(np.float32(number))
    bits = np.int64(np.float32(size).view(np.int32))
    normal = (bits - (112 << 23) + 0xFFF + ((bits >> 13) & 1)) >> 13
    shifted = np.float32(size + np.float32(0.5))
    subnormal = np.int64(shifted.view(np.int32)) - 0x3F00_0000
    found: Any = min(normal if size >= np.float32(2.0**-14) else subnormal, 0x7C00)
    return -found if number < 0 else found


@inlined
def _single_place(number: Any) -> Any:
    """Place among the singles, zero at 0."""
    bits = np.int64(np.float32(number).view(np.int32))
    size = bits & 0x7FFF_FFFF
    return -size if bits < 0 else size


@inlined
def most_ulps(left: Any, right: Any, grid: int) -> float:
    """Numbers of a grid between two, at most; `grid` is one of `GRIDS`, or 0 for none."""
    most = np.int64(0)
    if grid == 32:
        for place in range(left.size):
            most = max(most, abs(_single_place(left[place]) - _single_place(right[place])))
    elif grid == 16:
        for place in range(left.size):
            most = max(most, abs(_bfloat16_place(left[place]) - _bfloat16_place(right[place])))
    elif grid == 5:
        for place in range(left.size):
            most = max(most, abs(_float16_place(left[place]) - _float16_place(right[place])))
    return np.float64(most)


@inlined
def most_double_ulps(left: Any, right: Any) -> float:
    """The same for doubles, whose places may be more than `2**63` apart."""
    most = np.uint64(0)
    for place in range(left.size):
        one, two = left[place], right[place]
        one = -(one & 0x7FFF_FFFF_FFFF_FFFF) if one < 0 else one
        two = -(two & 0x7FFF_FFFF_FFFF_FFFF) if two < 0 else two
        most = max(most, np.uint64(max(one, two)) - np.uint64(min(one, two)))
    return np.float64(most)
