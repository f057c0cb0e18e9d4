"""How two trainings went on after their recorded steps, and what their step logs and idle settings say, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.core.finding import Comparison, Course, Ends, Verdict
from lockstep.core.remarks import On, beyond_noise
from lockstep.core.step_rows import Fact, Growth, StepLogsCompared
from lockstep.core.text import factor_figure, listed
from lockstep.core.told_facts import Told
from lockstep.report.paragraphs import counted


def in_headline(ends: Ends | None) -> list[str]:
    """Return an agreement's words about the ends: `equal at the end`, or that it does not reach so far."""
    if ends is None:
        return []
    if ends.course is Course.EQUAL:
        words = "equal bit by bit to the last recorded step, and equal at the end"
        return [words, *([ends.words] if ends.words else [])]
    if ends.course is Course.UNKNOWN:
        return [ends.words]
    if ends.course is not Course.NOISE:
        return []
    far = beyond_noise(ends.notes)
    return [how_far(ends), *([] if far is None else [f"but {far}"])]


def how_far(ends: Ends) -> str:
    """How far apart the trainings ended."""
    if math.isnan(ends.rel_l2):
        return "by how much the trainings differ at their end is not known"
    if ends.rel_l2 == 0:
        does = "does" if len(ends.others_apart) == 1 else "do"
        others = f", but {listed(ends.others_apart)} {does}" if ends.others_apart else ""
        return f"no parameter differs at the end{others}"
    words = f"the trainings differ by {_percent(ends.rel_l2)} at their end (relative L2)"
    return (
        f"{words}, {ends.largest} the most ({_percent(ends.largest_rel_l2)})"
        if ends.largest
        else words
    )


def _percent(share: float) -> str:
    """Return a share with two significant digits, as `0.56%`."""
    return f"{factor_figure(100 * share)}%"


def parting(comparison: Comparison) -> str:
    """Return where runs part that were equal bit by bit, or took a different course; "" if they did not."""
    ends = comparison.ends
    if ends is None or ends.course is not Course.APART:
        return ""
    return f"the runs part later: {ends.words}"


def paragraphs(comparison: Comparison) -> list[str]:
    """Return the paragraphs about the ends; empty if the headline says it all."""
    ends = comparison.ends
    if ends is None:
        return []
    found: list[str] = []
    if ends.course is Course.APART and (comparison.origins or comparison.uniform):
        found.append(ends.words)
    if ends.course in (Course.APART, Course.NOISE):
        found.append(how_far(ends))
    left, right = ends.final_losses
    if ends.course in (Course.APART, Course.NOISE) and left is not None and right is not None:
        found.append(f"last loss {left:.9g} / {right:.9g}")
    said = [*idle_settings(comparison)]
    if comparison.verdict is Verdict.AGREE and ends.course is Course.NOISE:
        said += [one for one in [beyond_noise(ends.notes)] if one is not None]
    return [*found, *(one for one in ends.notes if one not in said)]


_IDLE = frozenset({On.CALLS_IDLE, On.SETTING_IDLE, On.TRAINABLE_IDLE})


def idle_settings(comparison: Comparison) -> list[Told]:
    """What stands under an agreement: such settings; empty where the runs do not agree."""
    if comparison.verdict is not Verdict.AGREE:
        return []
    ends = () if comparison.ends is None else comparison.ends.notes
    return [one for one in map(Told.of, (*comparison.notes, *ends)) if one.facts.why in _IDLE]


def settings_in_headline(comparison: Comparison) -> list[str]:
    """An agreement's words about them."""
    count = len(idle_settings(comparison))
    return (
        [f"{counted(count, 'setting')} changed no number of these steps (below)"] if count else []
    )


LEAST_STEPS = 16
"""Steps of two logs from which on the growth of their differences says something."""
_MOST_DIFFERENCES = 3
_GROWS = 1.05
"""Factor a step from which on a difference is said to grow."""


def logs_in_headline(logs: StepLogsCompared | None) -> str:
    """Return the first difference of two step logs, "" if there is none that rounding cannot have made."""
    first = None if logs is None else logs.first
    return "" if first is None else f"{first} (step log)"


def logs_in_agreement(logs: StepLogsCompared | None) -> list[str]:
    """Return an agreement's words about numbers that leave the growth of rounding after the recorded steps."""
    left = None if logs is None else logs.left
    if left is None:
        return []
    return [f"but {_name(left)} leave the growth of rounding at step {left.left_at} (step log)"]


def log_paragraphs(comparison: Comparison) -> list[str]:
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
