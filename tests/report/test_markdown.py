"""A comparison as Markdown: what one reads first, and nothing of a recording that could leave its place."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.core.finding import Comparison, WhatNext
from lockstep.core.reason import Reason
from lockstep.report.comparison.markdown import render_markdown, write_markdown
from lockstep.report.comparison.screen import headline, render_comparison


@pytest.mark.parametrize("name", ["agreed", "diverged", "incomparable", "many_origins"])
def test_it_begins_with_the_headline_and_ends_with_the_text(
    name: str, request: pytest.FixtureRequest
) -> None:
    comparison: Comparison = request.getfixturevalue(name)
    text = render_markdown(comparison)
    words = headline(comparison).split()
    assert text.startswith(f"**{words[0].rstrip(':')}** `{words[1]}")
    assert render_comparison(comparison).plain.rstrip("\n") in text


def test_several_origins_make_a_table(many_origins: Comparison, diverged: Comparison) -> None:
    rows = [line for line in render_markdown(many_origins).splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(many_origins.origins)
    assert "| origin |" not in render_markdown(diverged)


def test_the_next_command_stands_in_a_block_of_its_own(diverged: Comparison) -> None:
    following = WhatNext("run it again", "lockstep replay 'a`b' ```c")
    text = render_markdown(replace(diverged, what_next=following))
    assert f"````sh\n{following.command}\n````" in text


def test_hostile_names_stay_in_their_place(hostile: Comparison, diverged: Comparison) -> None:
    # given origins whose words are Markdown, HTML, mentions, fences and terminal codes
    evil = "```\n</details><script>alert(1)</script> @all #1 [x](http://y) \x1b[31m \u202e \ud800 |"
    origin = replace(diverged.origins[0], module=evil, op=evil, source=evil, reason=Reason(evil))
    text = render_markdown(replace(diverged, origins=(origin, origin)))
    # then outside of code nothing of them is left
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", text)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    assert not re.search(r"script|[@#\[`]", outside)
    assert outside.count("</details>") == 1
    # and a table has as many cells as it should
    row = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    # and nothing moves a cursor, turns the direction of writing or breaks UTF-8
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode()
    render_markdown(hostile).encode()


def test_it_fits_into_a_tracker(diverged: Comparison) -> None:
    notes = tuple(f"note {number} " * 10 for number in range(5000))
    assert len(render_markdown(replace(diverged, notes=notes))) < 65_000


def test_it_is_written_as_utf_8(diverged: Comparison, tmp_path: Path) -> None:
    write_markdown(diverged, tmp_path / "found.md")
    assert (tmp_path / "found.md").read_text(encoding="utf-8") == render_markdown(diverged)
