"""Widths by layer: as few layers as need be are raised, the worst first, until the results reach a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lockstep_deploy.quantize.build import FLOAT_BITS
from lockstep_deploy.quantize.task import Outcome
from lockstep_deploy.quantize.uniform import MOST_BITS

_DECIBELS_PER_BIT = 20 * math.log10(2)
"""A bit more halves the step, and so the error."""


@dataclass(frozen=True)
class Trial:
    """A plan that was tried.

    bits: By the layer's name.
    outcome: What it gave.
    reaches: Whether that reaches the target.
    """

    bits: Mapping[str, int]
    outcome: Outcome
    reaches: bool


@dataclass(frozen=True)
class Search:
    """The result of a search for widths.

    trials: All, in the order in which they were tried.
    chosen: The last one that reaches the target, or the best where none does.
    """

    trials: Sequence[Trial]
    chosen: Trial


def middle_bits(bits: int, worst_db: float, layers: int, target_db: float) -> int:
    """A width that should do for most layers: for the worst one, and as many more of its kind as there are layers.

    bits: The width that was measured.
    worst_db: The least SQNR of a layer at this width, by its own error.
    layers: How many there are, whose errors add up.
    target_db: What is wanted of the results.
    """
    lacking = target_db + 10 * math.log10(layers) - worst_db
    return min(max(bits + math.ceil(lacking / _DECIBELS_PER_BIT), bits + 1), max(MOST_BITS, bits))


def searched(
    worst_first: Sequence[str], bits: int, middle: int, target_db: float,
    attempt: Callable[[Mapping[str, int]], Outcome],
) -> Search:  # fmt: skip
    """Find how many layers must be raised for the results to reach a target.

    Where the middle width for all layers does, a binary search finds the least number of the worst that need it. Else
    one finds how many must stay in float32 beside the middle width, and another how many need that. All take it that
    more layers raised are never worse; what is chosen was tried in any case. At most `2 log2(n) + 4` plans are tried
    for `n` layers.

    worst_first: Names of the layers, by their own error.
    bits, middle: The widths that layers have as long as they are not raised, and once they are.
    target_db: The least SQNR of the results, in dB.
    attempt: Quantises by a plan, and measures.
    """
    tried: dict[tuple[int, int], Trial] = {}

    def reaches(exact: int, raised: int) -> bool:
        """Whether so many layers in float32, and so many more of the middle width, reach the target."""
        widths = [FLOAT_BITS] * exact + [middle] * raised
        plan = dict.fromkeys(worst_first, bits) | dict(zip(worst_first, widths, strict=False))
        outcome = attempt(plan)
        tried[exact, raised] = Trial(plan, outcome, outcome.sqnr_db >= target_db)
        return tried[exact, raised].reaches

    def found(exact: int, raised: int) -> Search:
        return Search(list(tried.values()), tried[exact, raised])

    count = len(worst_first)
    if reaches(0, 0):
        return found(0, 0)
    if reaches(0, count):
        return found(0, _least(lambda number: reaches(0, number), 0, count))
    exact = _least(lambda number: reaches(number, count - number), 0, count)
    if exact == count and not reaches(count, 0):
        best = max(tried.values(), key=lambda one: one.outcome.sqnr_db)
        return Search(list(tried.values()), best)
    return found(exact, _least(lambda number: reaches(exact, number), -1, count - exact))


def _least(holds: Callable[[int], bool], fails: int, enough: int) -> int:
    """The least number for which something holds; it is taken to hold for `enough`, and not to for `fails`."""
    while enough - fails > 1:
        middle = (fails + enough) // 2
        if holds(middle):
            enough = middle
        else:
            fails = middle
    return enough
