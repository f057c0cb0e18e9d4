"""What two step logs say, in words."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.core.finding import Comparison
from lockstep.core.step_rows import Fact, Growth, StepLogsCompared
from lockstep.core.text import factor_figure

LEAST_STEPS = 16
"""Steps of two logs from which on the growth of their differences says something."""
_MOST_DIFFERENCES = 3
_GROWS = 1.05
"""Factor a step from which on a difference is said to grow."""


def in_headline(logs: StepLogsCompared | None) -> str:
    """Return the first difference of two step logs, "" if there is none that rounding cannot have made."""
    first = None if logs is None else logs.first
    return "" if first is None else f"{first} (step log)"


def in_agreement(logs: StepLogsCompared | None) -> list[str]:
    """Return an agreement's words about numbers that leave the growth of rounding after the recorded steps."""
    left = None if logs is None else logs.left
    if left is None:
        return []
    return [f"but {_name(left)} leave the growth of rounding at step {left.left_at} (step log)"]


def paragraphs(comparison: Comparison) -> list[str]:
    """Return the paragraphs about the step logs; empty if there is nothing to say."""
    logs = comparison.step_logs
    if logs is None:
        return []
    is_long = logs.steps >= LEAST_STEPS and logs.steps > len(comparison.steps)
    if not (is_long or logs.differences or logs.left):
        return []
    return [*_facts(logs), *_numbers(logs)]


def _facts(logs: StepLogsCompared) -> Iterator[str]:
    if not logs.differences and logs.facts:
        yield f"equal in all {logs.steps} steps: {logs.compared}"
    for one in logs.differences[:_MOST_DIFFERENCES]:
        yield f"{one}{'' if one.certain else _DECIDED_BY[one.fact]}"
    if len(logs.differences) > _MOST_DIFFERENCES:
        yield f"and {len(logs.differences) - _MOST_DIFFERENCES} more (--json lists them)"


_DECIDED_BY = {
    Fact.SKIPPED: "; an overflow decides that, and rounding may decide it",
    Fact.SETTING: "; it follows the losses, which differ before, and rounding may decide it",
}


def _numbers(logs: StepLogsCompared) -> Iterator[str]:
    if not logs.growths:
        yield f"equal bit by bit in all {logs.steps} steps: losses and gradient norms"
        return
    losses = [one for one in logs.growths if one.name == "losses"]
    for one in losses[:1]:
        yield _growth(one, logs.equal_losses)
    left = logs.left
    if left is not None:
        grows = "the calibration allows" if left.by_calibration else "the growth before leads to"
        yield (
            f"{_name(left)} differ by {left.left_with:.2g} at step {left.left_at}, and {grows}"
            f" {left.expected:.2g}: that is more than rounding; compare a window there"
        )


def _growth(one: Growth, equal: int) -> str:
    first = f"{_name(one)} are equal bit by bit for {equal} steps, " if equal else f"{_name(one)} "
    words = f"{first}differ by {one.began:.2g} first and by {one.ended:.2g} at most"
    if one.left_at is not None:
        return words
    if one.by_calibration:
        return f"{words}: no more than the calibration allows"
    if one.factor < _GROWS:
        return f"{words}, as rounding does"
    return f"{words}: they grow apart as rounding does, {factor_figure(one.factor)} times a step at first"


def _name(one: Growth) -> str:
    return f"{one.rank}: the {one.name}" if one.rank else f"the {one.name}"
