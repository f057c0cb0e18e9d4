"""Measure the processor time of each operator alone, on drawn numbers.

A recorder that looks at every tensor tells nothing of the times between. Run alone, nothing overlaps, and what stands
between operators is not in it.
"""

from __future__ import annotations

import math
import time

from lockstep.rerun import CannotReplay, RerunsApart, TimesAlone
from lockstep_operators.ran import Ran, RanOperator

_MOST_SECONDS = 20.0
"""What timing may take altogether; what no time was left for has none."""


def take_times(ran: Ran, memory_bytes: int) -> None:
    """Note what each operator takes in a step; those with the most numbers first."""
    reruns = RerunsApart(memory_bytes)
    began = time.monotonic()
    for operator in sorted(ran.operators, key=_numbers, reverse=True):
        if time.monotonic() - began > _MOST_SECONDS:
            return
        operator.seconds = _seconds(operator, reruns) / (ran.steps * ran.ranks)


def _numbers(operator: RanOperator) -> int:
    return sum(
        count * sum(record.content.numel for record in call.records)
        for count, call in operator.forms.values()
    )


def _seconds(operator: RanOperator, reruns: RerunsApart) -> float:
    """Of all calls; NaN where one form of them cannot be run alone."""
    counts = [count for count, _ in operator.forms.values()]
    try:
        forms = tuple(call for _, call in operator.forms.values())
        found = reruns.ask(TimesAlone(forms)).seconds
    except CannotReplay:
        return math.nan
    return sum(count * took for count, took in zip(counts, found, strict=True))
