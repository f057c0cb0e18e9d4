"""What was found in scripts, as text and as values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core.text import printable
from lockstep.report.paragraphs import Page, add_line, add_paragraph, counted
from lockstep.report.table import add_more
from lockstep.wings.check.scripts.randomness import ScriptFinding


def render(
    found: Sequence[ScriptFinding], failed: Mapping[str, str], looked: int, *, limit: int
) -> Page:
    """Every place with its line, why it matters and what to write instead."""
    text = Page()
    places = counted(len(found), "place")
    head = (
        f"{places} that make runs incomparable"
        if len(found) != 1
        else f"{places} that makes runs incomparable"
    )
    of = counted(looked, "script")
    add_line(
        text, f"{head}, in {of}" if found else f"Nothing is known to make runs of {of} incomparable"
    )
    for one in found[:limit]:
        add_line(text, "")
        add_line(text, printable(f"{one.file}:{one.line}  {one.text}"))
        add_paragraph(text, f"{one.rule}: {one.says}", indent="    ", first="  ")
        add_paragraph(text, f"instead: {printable(one.edit)}", indent="    ", first="  ")
    if len(found) > limit:
        add_line(text, "")
    add_more(text, len(found) - limit)
    if failed:
        add_line(text, "")
    for file, why in failed.items():
        add_paragraph(text, printable(f"not looked at: {file} {why}"), first="")
    return text


def as_values(
    found: Sequence[ScriptFinding], failed: Mapping[str, str], looked: int
) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "looked": looked,
        "findings": [dataclasses.asdict(one) for one in found],
        "not_looked_at": dict(failed),
    }
