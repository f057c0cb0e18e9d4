"""How far a value of a graph that the runtime fused may be off: one judgement for `export` and `bisect-fusions`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.judging import CALIBRATION_MARGIN_16_BIT

SINGLE_EPS = 2.0**-23
"""Distance of 1 to the next number of single precision."""

TIMES_NOISE = 10.0
"""How many times its noise a value of single precision or wider may be off: of three draws the largest is kept, which
is no bound, and kernels of other algorithms lose a digit that no draw shows (`judge.calibration`)."""


def allowed(noise: float, eps: float) -> float:
    """How far a value may be off, relative to its norm.

    noise: How far moving every number to a neighbour moves it, relative; the largest of some draws.
    eps: Of its dtype: no tolerance lies below it. In 16 bits each result is rounded once, and all that is drawn.
    """
    return (TIMES_NOISE if eps <= SINGLE_EPS else CALIBRATION_MARGIN_16_BIT) * max(noise, eps)


def relative_distance(one: Any, other: Any) -> float:
    """`|a - b| / max(|a|, |b|)` of two arrays, Euclidean; infinite where one alone has NaN or an infinity."""
    kind = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
    left, right = (np.asarray(value).astype(kind).ravel() for value in (one, other))
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if same.all():
        return 0.0
    if not np.isfinite(left[~same]).all() or not np.isfinite(right[~same]).all():
        return float("inf")
    left, right = np.where(np.isfinite(left), left, 0), np.where(np.isfinite(right), right, 0)
    return float(np.linalg.norm(left - right) / max(np.linalg.norm(left), np.linalg.norm(right)))
