"""A table of text: columns as wide as they need to be, cut to the terminal, and the number of omitted rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from lockstep.core.text import printable
from lockstep.report.paragraphs import add_line, terminal_width

_BETWEEN = "  "
_CUT = "..."

LISTED = "(--limit, or --json, lists them)"
"""How rows that are left out are had, by verbs that have both options."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Parameters
    ----------
    title
        Its heading.
    right
        Whether its cells stand at its right end, as numbers do.
    least
        Characters that it has at least.
    """

    title: str
    right: bool = False
    least: int = 0


def add_table(
    text: Text,
    columns: Sequence[Column],
    rows: Sequence[Sequence[object]],
    *,
    limit: int | None = None,
    indent: str = "",
    more: str = LISTED,
    width: int | None = None,
) -> None:
    """Add a table, and nothing where there are no rows.

    Parameters
    ----------
    rows
        A cell for each column; floating-point numbers are written by `figure`.
    limit
        How many rows are shown; None for all.
    indent
        The text before each line.
    more
        How the rows that are left out are had.
    width
        Columns of the terminal, to which a line is cut; None where there is none, and lines may be of any length.
    """
    if not rows:
        return
    cells = [[_cell(value) for value in row] for row in rows[:limit]]
    widths = [
        max(column.least, len(column.title), *(len(row[at]) for row in cells))
        for at, column in enumerate(columns)
    ]
    for line in ([column.title for column in columns], *cells):
        padded = (
            cell.rjust(wide) if column.right else cell.ljust(wide)
            for cell, column, wide in zip(line, columns, widths, strict=True)
        )
        add_line(text, _cut(f"{indent}{_BETWEEN.join(padded)}".rstrip(), width))
    add_more(text, len(rows) - len(cells), indent=indent, more=more)


def add_more(text: Text, count: int, *, more: str = LISTED, indent: str = "") -> None:
    """Say how many were left out and how they are had; nothing where none were."""
    if count > 0:
        add_line(text, f"{indent}and {count} more {more}")


def figure(value: float) -> str:
    """A number in four digits, `-` where it is not known."""
    return "-" if value != value else f"{value:.4g}"


def _cell(value: object) -> str:
    return figure(value) if isinstance(value, float) else printable(str(value))


def _cut(line: str, width: int | None) -> str:
    if width is None or len(line) <= width:
        return line
    return line[: max(width - len(_CUT), 0)] + _CUT


def table_text(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, limit: int | None = None
) -> str:
    """A table by itself, cut to the terminal where there is one; see `add_table`."""
    text = Text()
    add_table(text, columns, rows, limit=limit, width=terminal_width())
    return text.plain.rstrip("\n")
