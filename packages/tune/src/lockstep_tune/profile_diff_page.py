"""The page of `lockstep profile diff`: how the steps differ, and each module and phase with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from lockstep.page import Card, Grid, Page, Subject, Verdict
from lockstep_tune.diffing import (
    CONFIDENCE,
    ModuleDifference,
    headline,
    signed_time,
    whole_step,
)
from lockstep_tune.profile import Profile, time_text

DIFF_PAGE = "profile-diff.html"

_TITLES = (
    "beyond the noise", "module", "phase", "left", "right", "difference", "from", "to",
    "operators left", "operators right",
)  # fmt: skip


def profile_diff_page(
    found: Sequence[ModuleDifference], left: Sequence[Profile], right: Sequence[Profile]
) -> Page:
    """Compose the page of two profiles, or of repeats of the two."""
    step = whole_step(left, right)
    answer = headline(found, left, right)
    is_slower = step.is_told and step.difference_us > 0
    facts = [
        ("A step, left", time_text(step.left_us)),
        ("A step, right", time_text(step.right_us)),
        (f"{CONFIDENCE:.0%} interval of the difference", _interval(step)),
    ]
    rows = [
        ("yes" if one.is_told else "", one.path, one.phase.value, time_text(one.left_us), time_text(one.right_us),
         signed_time(one.difference_us), signed_time(one.low_us), signed_time(one.high_us), *one.operators)
        for one in found
    ]  # fmt: skip
    verdict = Verdict(
        "setup" if is_slower else "agree", "origin" if is_slower else "better", "Profiles",
        f"{len(found)} modules and phases", answer, "", facts,
    )  # fmt: skip
    sides = (("left", left), ("right", right))
    return Page(
        title=f"{answer} · Lockstep",
        areas=(verdict, Card("Difference by module, the largest first", (Grid(_TITLES, rows),))),
        subjects=tuple(
            Subject(side, ", ".join("/".join(Path(one.name).parts[-2:]) for one in profiles))
            for side, profiles in sides
        ),
        about=", ".join(f"{side} {profiles[0].device}" for side, profiles in sides),
    )


def _interval(one: ModuleDifference) -> str:
    if math.isnan(one.low_us):
        return "fewer than four steps on a side give none"
    return f"{signed_time(one.low_us)} to {signed_time(one.high_us)}"
