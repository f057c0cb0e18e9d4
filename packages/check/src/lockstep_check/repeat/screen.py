"""Whether a training is repeatable, as text and as values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.compare import headline as comparison_headline
from lockstep.terminal import Page, add_paragraph, counted, printable
from lockstep_check.data_files import rows_of
from lockstep_check.repeat.first_difference import FirstDifference
from lockstep_check.repeat.runs import Repeats

_FILE = Path(__file__).with_name("cures.yaml")


@cache
def cures() -> Mapping[str, Mapping[str, str]]:
    """Cause, cure and source by what differs first."""
    return {row["first"]: row for row in rows_of(_FILE)}


def headline(found: Repeats) -> str:
    """The answer in one sentence."""
    of = f"{counted(found.steps, 'step')} of {found.runs} runs"
    if found.first is None:
        return f"REPEATABLE bit by bit: {of} are equal in every tensor that was recorded"
    much = {True: " by rounding", False: " by more than rounding", None: ""}[found.within_noise]
    words = f"NOT REPEATABLE: {of} differ{much}, first at {printable(str(found.first))}"
    if found.within_noise is None and found.comparison is not None:
        words += (
            f"; whether that is rounding cannot be said: {comparison_headline(found.comparison)}"
        )
    return words


def render(found: Repeats) -> Page:
    """The headline, and where the runs differ why, the cure, and whether it was seen to cure."""
    text = Page()
    add_paragraph(text, headline(found), indent="  ", first="")
    if found.first is None:
        return text
    row = _cure(found, found.first)
    for label in ("cause", "cure", "source"):
        add_paragraph(text, f"{label}: {row[label]}", indent="    ", first="  ")
    add_paragraph(text, f"tried: {_tried(found)}", indent="    ", first="  ")
    return text


def _cure(found: Repeats, first: FirstDifference) -> Mapping[str, str]:
    """The cause and the cure; another one where seeds were tried, and the runs differ at the same place."""
    after = None if found.seeded is None else found.seeded.first
    same = after is not None and (after.kind, after.site) == (first.kind, first.site)
    rows = cures()
    return rows.get(f"{first.kind}, seeded too" if same else first.kind, rows[first.kind])


def _tried(found: Repeats) -> str:
    """What the same runs were with seeds and deterministic kernels."""
    if found.seeded is None:
        return "nothing"
    if found.seeded.first is None:
        return (
            "with `lockstep record --seed 0`, which seeds all generators and asks for deterministic kernels, it is"
            " repeatable bit by bit"
        )
    return (
        "`lockstep record --seed 0`, which seeds all generators and asks for deterministic kernels, does not make it"
        f" repeatable: the runs then differ first at {printable(str(found.seeded.first))}"
    )


def as_values(found: Repeats) -> dict[str, Any]:
    """The same for JSON."""
    first = found.first
    return {
        "repeatable": first is None,
        "runs": found.runs,
        "steps": found.steps,
        "within_noise": found.within_noise,
        "first": None
        if first is None
        else {
            "kind": first.kind,
            "rank": first.rank,
            "step": first.step,
            "site": first.site,
            "tensor": first.tensor,
            "source": first.source,
            **{label: _cure(found, first)[label] for label in ("cause", "cure")},
        },
        "seeded": None if found.seeded is None else as_values(found.seeded),
    }
