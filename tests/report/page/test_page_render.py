"""A page as HTML: self-contained, under a strict policy, and safe whatever the names in it are."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.report.page import (
    Card,
    Code,
    Command,
    Commands,
    Kind,
    Marked,
    Metric,
    Page,
    Rows,
    Ruler,
    Scatter,
    Selected,
    Sentences,
    Strip,
    Subject,
    Table,
    TableColumn,
    TextColumn,
    Tree,
    Verdict,
    Work,
    render,
    write_page,
)
from lockstep.report.page.areas import FIRST_ROWS, number
from lockstep.report.page.escape import html_text, visible

HOSTILE = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "\x1b[31mred\x1b[0m", "=1+1",
    "x" * 10_000, "\ud800", "a\u202eb", "' onload='alert(1)", '"><b>', "]]>", "<!--", "\x00", "__proto__",
)  # fmt: skip


class Tags(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(name: str, count: int = 3) -> Page:
    """A page with a name in every place that takes one."""
    text = TextColumn(np.zeros(count, np.int32), (name,))
    kind = TextColumn(np.zeros(count, np.int32), ("origin",))
    numbers = np.arange(count, dtype=np.float64)
    columns = {
        "step": np.zeros(count, np.int32), "rank": text, "phase": text, "module": text, "operator": text,
        "call": np.zeros(count, np.int32), "kind": kind, "margin": numbers, "tensor": text, "role": text,
    }  # fmt: skip
    rows = Rows(columns, (Kind("origin", "origin", "fault", 1),), marked=(0,), selected=0)
    table = Table("Pairs", (TableColumn("where", "module", "site"), TableColumn("off", "margin")))
    work = Work(
        Tree("Modules"), Scatter("Plot", (Metric("margin", "off"),)), table, Selected("Row")
    )
    verdict = Verdict(
        "fault", "origin", name, name, name, name, ((name, name),), Ruler(1e-6, 0.1, name),
        (Code(name, ((1, name),)),), Commands((Command(name, name, name),), name),
    )  # fmt: skip
    card = Card(name, (Sentences((name,), name),))
    return Page(name, (verdict, Strip("Strip"), work, card), (Subject(name, name),), name, rows)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_and_nothing_else(name: str) -> None:
    # given a page with this name everywhere, and the same with a harmless one
    hostile, harmless = render(page_of(name)), render(page_of("harmless"))
    # then both have the same elements, and UTF-8 takes it
    assert [tag for tag, _ in Tags(hostile).tags] == [tag for tag, _ in Tags(harmless).tags]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", hostile)
    hostile.encode()
    assert (
        "alert(1)" not in re.sub(r"<script.*?</script>", "", hostile)
        or "&lt;" in hostile
        or "'" in name
    )


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec=None)))
def test_escaped_text_reads_as_what_is_visible(text: str) -> None:
    found = Tags(f"<p>{html_text(text, None)}</p>")
    assert [tag for tag, _ in found.tags] == ["p"]
    assert found.text == visible(text)


def test_a_name_of_ten_thousand_characters_keeps_head_and_tail() -> None:
    found = html_text("head" + "x" * 10_000 + "tail")
    assert len(found) < 300
    assert found.startswith("head")
    assert found.endswith("tail")


def test_a_command_is_never_cut() -> None:
    command = "lockstep replay " + "x" * 5_000
    text = render(
        Page(
            "t",
            (Verdict("none", "none", "", "", "s", commands=Commands((Command("Do", command),))),),
        )
    )
    assert command in text


def test_a_sentence_is_never_cut_but_a_name_in_it_is() -> None:
    sentence = (
        "340 tensors compared, 339 equal bit by bit, 1 inside its tolerance, none left out at all"
    )
    verdict = Verdict("agree", "agree", "", "", (sentence, Marked("x" * 300)))
    text = render(Page("t", (verdict,)))
    assert sentence in text
    assert "x" * 300 not in text


def test_the_policy_lets_only_the_own_script_and_style_run() -> None:
    text = render(page_of("name"))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    allowed = policy[1].replace("&#x27;", "'")
    assert allowed.startswith("default-src 'none'; ")
    assert "unsafe" not in allowed
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in allowed
    # and no element has a style or a handler of its own, which the policy would refuse
    attributes = {name for _, found in Tags(text).tags for name in found}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}


def test_nothing_is_fetched_from_anywhere() -> None:
    text = render(page_of("name"))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"""\b(?:src|href)=["'](?!#)|url\(|@import""", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_the_first_rows_can_be_read_without_a_script() -> None:
    text = render(page_of("layer", count=FIRST_ROWS + 50))
    assert text.count("<tr><td>layer / layer</td>") == FIRST_ROWS
    assert f"{FIRST_ROWS + 50}, the first {FIRST_ROWS}" in text


def test_an_empty_table_says_why() -> None:
    assert "No pair was compared, so there is nothing to list." in render(page_of("x", count=0))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.127415, "0.1274"),
        (3.81e-6, "3.81e-6"),
        (float("nan"), "–"),
        (float("-inf"), "−∞"),
        (0.0, "0"),
    ],
)
def test_numbers_are_short_and_say_what_is_unknown(value: float, words: str) -> None:
    assert number(value) == words


def test_a_page_replaces_its_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    write_page(Page("new", ()), path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]
