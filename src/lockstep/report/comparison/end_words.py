"""How two trainings went on after their recorded steps, in words."""

from __future__ import annotations

import math

from lockstep.core.finding import Comparison, Course, Ends, Verdict
from lockstep.core.remarks import beyond_noise
from lockstep.core.text import factor_figure, listed
from lockstep.report.comparison.idle_settings import idle_settings


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
