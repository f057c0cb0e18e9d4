"""The usual size of a number over the last steps, to tell one that is far above it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_NORMAL = 1.4826
"""Makes a median deviation a standard deviation of normal noise (Rousseeuw and Croux, JASA 1993)."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Median and spread of numbers; `ratio` is a standard deviation of their logarithms, as a factor's."""

    median: float
    spread: float
    ratio: float


def usual(numbers: Sequence[float]) -> Usual:
    """Return the usual size of numbers, by medians, so that one far off counts for nothing.

    >>> usual([2.0, 2.0, 2.0, 100.0])
    Usual(median=2.0, spread=0.0, ratio=0.0)
    """
    ratio = 0.0
    if all(one > 0.0 for one in numbers):
        ratio = _spread([math.log(one) for one in numbers])
    return Usual(median(numbers), _spread(numbers), ratio)


def _spread(numbers: Sequence[float]) -> float:
    middle = median(numbers)
    return _NORMAL * median(abs(one - middle) for one in numbers)
