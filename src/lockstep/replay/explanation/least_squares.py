"""One number of least squares, by Gauss-Newton steps on difference quotients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from lockstep.replay.explanation.outcome import norm_of

_ROUNDS = 8
"""Gauss-Newton steps: with one unknown and a smooth operator each doubles the digits."""

_PROBE = 1e-4
"""Relative step of the difference quotient: the square root of the roundoff of single precision, a little less than
best in double precision, and safe where an operator has kinks."""


def least_squares(
    made: Callable[[float], torch.Tensor | None],
    start: float,
    actual: torch.Tensor,
    counted: torch.Tensor,
) -> float | None:
    """The number for which a function comes nearest to what was recorded; None where the search goes astray.

    made: What the function gives for a number; None where it refuses.
    start: Number to begin with.
    actual, counted: What was recorded, and its elements that count.
    """
    number, best = start, made(start)
    if best is None or best.shape != actual.shape:
        return None
    for _ in range(_ROUNDS):
        by = number * _PROBE or _PROBE
        probe = made(number + by)
        if probe is None or probe.shape != actual.shape:
            return None
        slope = ((probe - best) / by)[counted]
        left = (actual - best)[counted]
        size = float(slope @ slope)
        step = float(slope @ left) / size if size > 0 else math.nan
        if not math.isfinite(step) or abs(step) > 100 * (abs(start) or 1.0):
            return None
        following = made(number + step) if number + step != 0 else None
        if following is None:
            return None
        if norm_of(actual - following, counted) >= norm_of(actual - best, counted):
            break
        number, best = number + step, following
    return number if number != start else None
