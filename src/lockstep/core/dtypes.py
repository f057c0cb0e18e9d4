"""The range and precision of each dtype: unit roundoff, size, kind."""

from __future__ import annotations

import math

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "complex32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
}

_LARGEST_FINITE = {
    "float64": (2 - 2.0**-52) * 2.0**1023,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
}

_SMALLEST_POSITIVE = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float8_e4m3fn": 2.0**-9,
    "float8_e4m3fnuz": 2.0**-10,
    "float8_e5m2": 2.0**-16,
    "float8_e5m2fnuz": 2.0**-17,
}


def is_floating(dtype: str) -> bool:
    """Whether numbers of this dtype are rounded (real or complex floating point)."""
    return dtype in _UNIT_ROUNDOFF


def is_complex(dtype: str) -> bool:
    """Whether numbers of this dtype have a real and an imaginary part.

    >>> is_complex("complex64"), is_complex("float32")
    (True, False)
    """
    return dtype.startswith("complex")


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of one correctly rounded operation, dimensionless.

    Half the spacing of numbers at 1, `2**-p` for a significand of `p` bits (IEEE 754-2019, section 3; Higham, Accuracy
    and Stability of Numerical Algorithms, 2nd ed., section 2.1; bfloat16 p = 8, float8 as in OCP OFP8 1.0). Integer and
    boolean dtypes do not round: 0.

    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return _UNIT_ROUNDOFF.get(dtype, 0.0)


def least_relative_rounding(dtype: str, numel: int) -> float:
    """One rounding of one element of the mean size, relative to the norm of a tensor; dimensionless.

    >>> least_relative_rounding("float32", 4) == 2.0**-25
    True
    """
    return unit_roundoff(dtype) / math.sqrt(max(1, numel))


def largest_finite(dtype: str) -> float | None:
    """The largest number that a real floating-point dtype holds; None for others.

    >>> largest_finite("float16"), largest_finite("int64")
    (65504.0, None)
    """
    return _LARGEST_FINITE.get(dtype)


def smallest_positive(dtype: str) -> float | None:
    """The smallest positive number that a real floating-point dtype holds, a subnormal one; None for others.

    >>> smallest_positive("float16") == 2.0**-24
    True
    """
    return _SMALLEST_POSITIVE.get(dtype)
