"""A comparison as Markdown for an issue tracker: the answer first, and the terminal's text below it."""

from __future__ import annotations

import re
from pathlib import Path

from lockstep.core.finding import Comparison
from lockstep.core.text import printable
from lockstep.report.comparison.screen import render_comparison
from lockstep.report.comparison.verdict_words import (
    answer_of,
    lines_below,
    origin_words,
    place_words,
    source_words,
    tally_of,
)

_MOST_CHARACTERS = 50_000
"""Of the terminal's text: trackers take some 65 000 in all."""

_MOST_ORIGINS = 20
_MOST_IN_A_CELL = 300


def render_markdown(comparison: Comparison) -> str:
    """The verdict in bold, why, a table of the origins, and all that the terminal says in a block of its own.

    Text that comes from recordings cannot leave its place: it stands in code, whose fence is longer than any in it.
    """
    tally = tally_of(comparison.findings)
    answer = answer_of(comparison, tally)
    lines = [f"**{answer.word}** {code(answer.rest)}", ""]
    lines += [f"- {code(line)}" for line in lines_below(comparison)]
    if len(comparison.origins) > 1:
        lines += ["", "| origin | where | why |", "|---|---|---|"]
    for number, origin in enumerate(comparison.origins[:_MOST_ORIGINS], start=1):
        if len(comparison.origins) > 1:
            place = f"{place_words(origin, tally)}, {source_words(origin)}".removesuffix(", ")
            lines.append(f"| {number} | {_cell(place)} | {_cell(origin_words(origin))} |")
    if len(comparison.origins) > _MOST_ORIGINS:
        lines += ["", f"and {len(comparison.origins) - _MOST_ORIGINS} more origins"]
    if comparison.what_next is not None:
        lines += ["", f"Next, to {comparison.what_next.words}:", ""]
        lines += _block(printable(comparison.what_next.command), "sh")
    text = render_comparison(comparison).plain
    lines += ["", "<details><summary>All that <code>lockstep compare</code> says</summary>", ""]
    lines += [*_block(text[:_MOST_CHARACTERS], "text"), "", "</details>", ""]
    return "\n".join(lines)


def write_markdown(comparison: Comparison, path: Path) -> None:
    """Write the text of `render_markdown`; an existing file is replaced.

    Raises OSError if the file cannot be written.
    """
    path.write_text(render_markdown(comparison), encoding="utf-8")


def code(text: str) -> str:
    r"""Text on one line as a code span, in which nothing is read: no mark, no tag, no mention, no number of an issue.

    >>> print(code("@me: a_b `c` <i>"))
    `` @me: a_b `c` <i> ``
    """
    line = printable(text)
    fence = "`" * (max(map(len, re.findall(r"`+", line)), default=0) + 1)
    room = " " if len(fence) > 1 or line.strip() != line else ""
    return f"{fence}{room}{line}{room}{fence}"


def _cell(text: str) -> str:
    shown = text if len(text) <= _MOST_IN_A_CELL else f"{text[:_MOST_IN_A_CELL]} ..."
    return code(shown).replace("|", "\\|")  # a table ends cells at bars within code, too


def _block(text: str, language: str) -> list[str]:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text.rstrip("\n"), fence]
