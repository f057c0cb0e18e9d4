"""Tables of the docs are drawn whole, and the map of the source names every package."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_it import MarkdownIt
from test_links import pages

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "lockstep"
_BEGINS_WITH_MARK = re.compile(r"\s*<!--.*-->\s*")


def torn_rows(text: str) -> list[str]:
    """The lines of a page that are written as rows and drawn as text: rows of a table that a blank line cuts off."""
    drawn = MarkdownIt("commonmark").enable("table").parse(text)
    known = set[int]()
    for token in drawn:
        if token.map is not None and token.type in (
            "table_open",
            "fence",
            "code_block",
            "html_block",
        ):
            known.update(range(*token.map))
    lines = text.splitlines()
    return [line for at, line in enumerate(lines) if line.startswith("|") and at not in known]


def unseparated_tables(text: str) -> list[str]:
    """The first lines of tables that stand right below a text, which the site draws as more of that text."""
    lines = ["", *text.splitlines()]
    drawn = MarkdownIt("commonmark").enable("table").parse(text)
    begun = [token.map[0] for token in drawn if token.type == "table_open" and token.map]
    return [
        lines[at + 1]
        for at in begun
        if lines[at].strip() and not _BEGINS_WITH_MARK.fullmatch(lines[at])
    ]


def test_every_row_of_every_page_is_drawn_as_a_row() -> None:
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
    assert sum(text.count("\n|") for text in texts.values()) > 700
    assert {name: torn for name, text in texts.items() if (torn := torn_rows(text))} == {}
    assert {name: one for name, text in texts.items() if (one := unseparated_tables(text))} == {}


def test_a_table_with_a_blank_line_in_it_is_found_and_its_whole_twin_is_not() -> None:
    # given a table, the same with a blank line behind its head, and with one between its rows
    head, rows = "| a | b |\n|---|---|\n", ["| 1 | 2 |", "| 3 | 4 |"]
    assert torn_rows(head + "\n".join(rows)) == []
    assert torn_rows(head + "\n" + "\n".join(rows)) == rows
    assert torn_rows(head + "\n\n".join(rows)) == rows[1:]
    # and one in code, which is none
    assert torn_rows("```\n| 1 |\n```\n") == []
    # and one right below a text
    assert unseparated_tables("text\n" + head) == ["| a | b |"]
    assert unseparated_tables("text\n\n" + head) == []


def column(text: str, head: str) -> list[list[str]]:
    """The rows of the one table with this head, cell by cell."""
    table = text.split(f"\n{head}\n", 1)[1].split("\n\n", 1)[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]


def test_each_package_of_the_source_has_a_row_on_the_map() -> None:
    rows = column((ROOT / "docs" / "architecture.md").read_text(), "| package | what it is for |")
    named = [name for cells in rows for name in re.findall(r"`([\w./]+)`", cells[0])]
    # given the packages of the source, wing by wing, and the modules beside them
    wings = SOURCES / "wings"
    packages = [
        path for path in SOURCES.iterdir() if (path / "__init__.py").exists() and path != wings
    ]
    packages += [path for path in wings.iterdir() if (path / "__init__.py").exists()]
    expected = {str(path.relative_to(SOURCES)) for path in packages}
    expected |= {path.name for path in SOURCES.glob("*.py") if not path.name.startswith("__")}
    expected -= {"cache.py", "compat.py"}  # they say where the members are
    # and the members
    expected |= {path.name for path in ROOT.glob("packages/*/src/lockstep_*")}
    assert len(expected) > 35
    # then each has one row, and no row names what is gone
    assert sorted(named) == sorted(expected)


def test_each_file_on_the_map_is_there() -> None:
    rows = column((ROOT / "docs" / "architecture.md").read_text(), "| topic | file |")
    assert len(rows) >= 62
    sources = [ROOT / "src", *ROOT.glob("packages/*/src")]
    there = {path.name for source in sources for path in source.rglob("*") if path.is_file()}
    there |= {path.name for path in (ROOT / "benchmarks").iterdir()}
    files = [
        name
        for cells in rows
        for name in re.findall(r"`[\w/*.]*?([\w*]+\.(?:py|yaml|csv|md))`", cells[1])
    ]
    assert len(files) > 90
    assert [name for name in files if "*" not in name and name not in there] == []
