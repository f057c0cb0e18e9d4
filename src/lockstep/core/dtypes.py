"""What numbers of each dtype can and cannot hold: unit roundoff, size, kind."""

from __future__ import annotations

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


def is_floating(dtype: str) -> bool:
    """Whether numbers of this dtype are rounded (real or complex floating point)."""
    return dtype in _UNIT_ROUNDOFF


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of one correctly rounded operation, dimensionless.

    Half the spacing of numbers at 1, `2**-p` for a significand of `p` bits (IEEE 754-2019, section 3; Higham, Accuracy
    and Stability of Numerical Algorithms, 2nd ed., section 2.1; bfloat16 p = 8, float8 as in OCP OFP8 1.0). Integer and
    boolean dtypes do not round: 0.

    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return _UNIT_ROUNDOFF.get(dtype, 0.0)
