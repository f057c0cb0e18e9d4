"""Two profiles side by side by module: which modules take longer, and whether that is more than steps vary anyway."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lockstep.terminal import (
    Column,
    Page,
    add_line,
    add_paragraph,
    add_table,
    counted,
    enveloped,
    terminal_width,
)
from lockstep_tune.module_tree import place_of
from lockstep_tune.profile import Phase, Profile, time_text

CONFIDENCE = 0.95
"""Of the interval of a difference, as is usual."""


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """How long a module, with all below it, takes in two profiles.

    path, phase: Which, and in which part of the step.
    left_us, right_us: Medians of its steps.
    low_us, high_us: The interval of the difference, right minus left; NaN where there are too few steps for one.
    operators: Names of the operators on either side, the slowest first.
    """

    path: str
    phase: Phase
    left_us: float
    right_us: float
    low_us: float
    high_us: float
    operators: tuple[str, str]

    @property
    def difference_us(self) -> float:
        """Right minus left."""
        return self.right_us - self.left_us

    @property
    def is_told(self) -> bool:
        """Whether the two differ by more than their steps vary."""
        return self.low_us > 0 or self.high_us < 0


def differences(left: Sequence[Profile], right: Sequence[Profile]) -> list[ModuleDifference]:
    """Return every module and phase of two trainings, the largest difference first.

    Operators may be called differently on the two sides, as on two devices: modules are what is paired.

    left, right: One profile or several of each: the steps of all of them are its repeats.
    """
    sides = [_steps(profiles) for profiles in (left, right)]
    found = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        ours, theirs = (
            side.get(key, [0.0] * _count(profiles))
            for side, profiles in zip(sides, (left, right), strict=True)
        )
        low, high = interval(ours, theirs)
        names = _slowest(left, key), _slowest(right, key)
        found.append(
            ModuleDifference(
                *key, statistics.median(ours), statistics.median(theirs), low, high, names
            )
        )
    return sorted(found, key=lambda one: -abs(one.difference_us))


def interval(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """Return the interval in which the shift between two samples lies, free of any distribution.

    The ends are ordered differences of all pairs (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963), the
    count left out at either end from the exact distribution of the Mann-Whitney statistic. NaN where the samples are
    too small for it: fewer than four each, or so.

    Examples
    --------
    >>> interval([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3])
    (0.7, 1.3)
    """
    pairs = sorted(theirs - ours for ours in left for theirs in right)
    total = math.comb(len(left) + len(right), len(left))
    below, left_out = 0, 0
    while True:
        below += _ways(len(left), len(right), left_out)
        if 2 * below / total > 1 - CONFIDENCE:
            break
        left_out += 1
    if left_out == 0:
        return math.nan, math.nan
    return round(pairs[left_out - 1], 9), round(pairs[-left_out], 9)


@cache
def _ways(left: int, right: int, statistic: int) -> int:
    """In how many orders of two samples the Mann-Whitney statistic is this number."""
    if statistic < 0 or left < 0 or right < 0:
        return 0
    if left == 0 or right == 0:
        return int(statistic == 0)
    return _ways(left - 1, right, statistic - right) + _ways(left, right - 1, statistic)


_Key = tuple[str, Phase]


def _steps(profiles: Sequence[Profile]) -> dict[_Key, list[float]]:
    """What each step takes by module and phase, with all that is below the module."""
    found: dict[_Key, list[float]] = {}
    for number, profile in enumerate(profiles):
        count, before = _count([profile]), _count(profiles[:number])
        own: dict[_Key, list[float]] = defaultdict(lambda count=count: [0.0] * count)  # type: ignore[misc]
        for one in profile.operators:
            parts = place_of(one).split(".")
            for depth in range(1, len(parts) + 1):
                times = own[".".join(parts[:depth]), one.phase]
                for at, took in enumerate(one.steps_us[:count]):
                    times[at] += took
        for key in {*found, *own}:
            found.setdefault(key, [0.0] * before).extend(own.get(key, [0.0] * count))
    return found


def _count(profiles: Sequence[Profile]) -> int:
    return sum(max(len(one.steps_us), 1) for one in profiles)


def _slowest(profiles: Sequence[Profile], key: _Key) -> str:
    path, phase = key
    inside = [
        one for profile in profiles for one in profile.operators
        if one.phase is phase and f"{place_of(one)}.".startswith(f"{path}.")
    ]  # fmt: skip
    inside.sort(key=lambda one: -sum(one.steps_us))
    return ", ".join(dict.fromkeys(one.name.removeprefix("aten::") for one in inside[:3]))


def whole_step(left: Sequence[Profile], right: Sequence[Profile]) -> ModuleDifference:
    """Return the difference of the steps as a whole: the one that a verdict is made of, as there are many modules."""
    ours, theirs = (
        [took for one in side for took in (one.steps_us or (one.step_us,))]
        for side in (left, right)
    )
    medians = statistics.median(ours), statistics.median(theirs)
    return ModuleDifference("a step", Phase.FORWARD, *medians, *interval(ours, theirs), ("", ""))


def headline(
    found: Sequence[ModuleDifference], left: Sequence[Profile], right: Sequence[Profile]
) -> str:
    """The answer in one sentence."""
    step = whole_step(left, right)
    ratio = step.right_us / step.left_us if step.left_us > 0 else math.nan
    words = f"a step takes {time_text(step.left_us)} / {time_text(step.right_us)} ({ratio:.2f} x)"
    if math.isnan(step.low_us):
        return f"NOT TOLD APART: {words}; fewer than four steps on a side give no interval: profile more of them"
    if not step.is_told:
        return f"NO DIFFERENCE: {words}, which is no more than steps vary"
    is_slower = step.difference_us > 0
    most = next(
        (one for one in found if one.is_told and (one.difference_us > 0) == is_slower), None
    )
    where = (
        f", most in {most.path}, {most.phase.value} ({signed_time(most.difference_us)})"
        if most
        else ""
    )
    return f"{'SLOWER' if is_slower else 'FASTER'}: {words}{where}"


def render(
    found: Sequence[ModuleDifference],
    left: Sequence[Profile],
    right: Sequence[Profile],
    *,
    limit: int,
) -> Page:
    """The answer, and a row for each module and phase."""
    text = Page(terminal_width() or 100)
    add_paragraph(text, headline(found, left, right), first="")
    add_paragraph(
        text,
        f"{counted(_count(left), 'step')} / {counted(_count(right), 'step')}, {CONFIDENCE:.0%} intervals",
    )
    add_line(text, "")
    titles = (
        "",
        "module",
        "phase",
        "left",
        "right",
        "difference",
        "from",
        "to",
        "operators left",
        "operators right",
    )
    columns = [Column(title, right=2 < at < 8) for at, title in enumerate(titles)]
    rows = [
        ("*" if one.is_told else "", one.path, one.phase.value, time_text(one.left_us), time_text(one.right_us),
         signed_time(one.difference_us), signed_time(one.low_us), signed_time(one.high_us), *one.operators)
        for one in found
    ]  # fmt: skip
    add_table(text, columns, rows, limit=limit, width=terminal_width())
    return text


def signed_time(microseconds: float) -> str:
    """A difference of two times with its sign, "-" where it is not known."""
    if math.isnan(microseconds):
        return "-"
    return f"{'-' if microseconds < 0 else '+'}{time_text(abs(microseconds))}"


def as_values(
    found: Sequence[ModuleDifference], left: Sequence[Profile], right: Sequence[Profile]
) -> dict[str, Any]:
    """The same for JSON; times in microseconds of a step."""
    return enveloped(
        {
            "headline": headline(found, left, right),
            "confidence": CONFIDENCE,
            "modules": [
                {
                    "module": one.path, "phase": one.phase.value, "left_us": one.left_us, "right_us": one.right_us,
                    "low_us": one.low_us, "high_us": one.high_us, "differs": one.is_told,
                    "operators": one.operators,
                }
                for one in found
            ],
        }
    )  # fmt: skip
