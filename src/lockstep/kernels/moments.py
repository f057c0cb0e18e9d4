"""Sums of squares and of fourth powers of doubles, and of differences, in one pass and without a copy."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lockstep.kernels.jit import compiled

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_DOUBLES = "Array(float64, 1, 'C', readonly=True)"


@compiled(f"UniTuple(float64, 2)({_DOUBLES})")
def _moments(values: Any) -> Any:
    squares, fourths = 0.0, 0.0
    for place in range(values.size):
        square = values[place] * values[place]
        squares += square
        fourths += square * square
    return squares, fourths


@compiled(f"UniTuple(float64, 2)({_DOUBLES}, {_DOUBLES})")
def _moments_of_difference(left: Any, right: Any) -> Any:
    squares, fourths = 0.0, 0.0
    for place in range(left.size):
        off = left[place] - right[place]
        square = off * off
        squares += square
        fourths += square * square
    return squares, fourths


@compiled(f"float64(Array(float32, 1, 'C', readonly=True), {_DOUBLES})")
def _squares_of_difference(left: Any, right: Any) -> Any:
    squares = 0.0
    for place in range(left.size):
        off = np.float64(left[place]) - right[place]
        squares += off * off
    return squares


@compiled(f"int64({_DOUBLES}, float64)")
def _count_between(values: Any, limit: float) -> int:
    count = 0
    for place in range(values.size):
        size = abs(values[place])
        count += (size > limit) & (size < np.inf)
    return count


KERNELS = (_moments, _moments_of_difference, _squares_of_difference, _count_between)


def moments(values: Doubles) -> tuple[float, float]:
    """Sum of squares and of fourth powers, shape (n,); not finite where an element or a sum is not."""
    return cast(tuple[float, float], _moments(values))


def moments_of_difference(left: Doubles, right: Doubles) -> tuple[float, float]:
    """The same for `left - right`, both of shape (n,)."""
    return cast(tuple[float, float], _moments_of_difference(left, right))


def squares_of_difference(left: Singles, right: Doubles) -> float:
    """Sum of squares of `left - right` in double precision, both of shape (n,); not finite as for `moments`."""
    return cast(float, _squares_of_difference(left, right))


def has_beyond(values: Doubles, limit: float) -> bool:
    """Whether a finite element, shape (n,), is larger than `limit` in magnitude."""
    return bool(_count_between(values, limit))
