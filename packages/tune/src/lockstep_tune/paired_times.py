"""How many times faster one state of a training is than another, from pairs of runs that follow each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""Of an interval, as is usual."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster, dimensionless, with the interval in which that lies.

    ratio: The geometric mean of the pairs' ratios.
    low, high: The ends of the interval; infinitely far apart with a single pair.
    pairs: How many there are.
    """

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.2f} x ({self.low:.2f} to {self.high:.2f})"


def speedup(pairs: Sequence[tuple[float, float]]) -> Speedup:
    """Return how many times faster the second of each pair is.

    What slows the machine for a while slows both runs of a pair, so the ratio of each pair is one observation. The
    interval is that of Student's t for the mean of their logarithms: ratios are to be averaged geometrically (Fleming
    and Wallace, Communications of the ACM 29, 1986), and few runs need the t distribution (Georges, Buytaert and
    Eeckhout, OOPSLA 2007, section 3.2).

    Parameters
    ----------
    pairs
        Seconds of a step before and after.

    Examples
    --------
    >>> str(speedup([(2.0, 1.0), (2.1, 1.0), (2.0, 1.05)]))
    '2.00 x (1.77 to 2.26)'
    """
    logarithms = [math.log(before / after) for before, after in pairs]
    mean, count = statistics.fmean(logarithms), len(logarithms)
    if count < 2:
        return Speedup(math.exp(mean), 0.0, math.inf, count)
    spread = statistics.stdev(logarithms) / math.sqrt(count)
    half = student_quantile(CONFIDENCE, count - 1) * spread
    return Speedup(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)


def student_quantile(confidence: float, degrees: int) -> float:
    """Return the t inside of which, on both sides of 0, so much of Student's distribution lies.

    Examples
    --------
    >>> round(student_quantile(0.95, 2), 3)
    4.303
    """
    low, high = 0.0, 1.0
    while _inside(high, degrees) < confidence:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _inside(middle, degrees) < confidence else (low, middle)
    return high


def _inside(t: float, degrees: int) -> float:
    """The part of Student's distribution between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if degrees % 2 else 1.0
    total = 0.0 if degrees == 1 else term
    for power in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    return (angle + sine * total) * 2.0 / math.pi if degrees % 2 else sine * total
