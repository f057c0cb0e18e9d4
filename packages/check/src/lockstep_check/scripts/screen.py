"""Print the lines found in scripts, as text and as values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.terminal import Page, add_line, add_more, add_paragraph, counted, printable
from lockstep_check.scripts.randomness import ScriptFinding


def render(
    found: Sequence[ScriptFinding], failed: Mapping[str, str], looked: int, *, limit: int
) -> Page:
    """Every place with its line, why it matters and what to write instead."""
    text = Page()
    add_line(text, _headline(found, counted(looked, "script")))
    for one in found[:limit]:
        add_line(text, "")
        add_line(text, printable(f"{one.file}:{one.line}  {one.text}"))
        doubt = "" if one.certain else ", could not be told"
        add_paragraph(text, f"{one.rule}{doubt}: {one.says}", indent="    ", first="  ")
        add_paragraph(text, f"instead: {printable(one.edit)}", indent="    ", first="  ")
    if len(found) > limit:
        add_line(text, "")
    add_more(text, len(found) - limit)
    if failed:
        add_line(text, "")
    for file, why in failed.items():
        add_paragraph(text, printable(f"not looked at: {file} {why}"), first="")
    return text


def _headline(found: Sequence[ScriptFinding], scripts: str) -> str:
    certain = sum(one.certain for one in found)
    unsure = len(found) - certain
    if not found:
        return f"No line that makes runs incomparable, in {scripts}"
    words = []
    if certain:
        make = "makes" if certain == 1 else "make"
        words.append(f"{counted(certain, 'place')} that {make} runs incomparable")
    if unsure:
        words.append(f"{counted(unsure, 'place')} that could not be told")
    return f"{', and '.join(words)}, in {scripts}"


def as_values(
    found: Sequence[ScriptFinding], failed: Mapping[str, str], looked: int
) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "looked": looked,
        "findings": [dataclasses.asdict(one) for one in found],
        "not_looked_at": dict(failed),
    }
