"""Tables as CSV files; no text in them is run as a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from lockstep.core.replacement import replacing

Cell = str | int | float | None
"""One value of a table; None for an empty cell."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv_table(path: Path, titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a table, UTF-8, lines ending in a line feed; None is an empty cell.

    Texts that a spreadsheet would run as a formula start with an apostrophe (OWASP, CSV
    injection). A file that is there already is replaced.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with (
        replacing(path) as aside,
        aside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(titles)
        for row in rows:
            writer.writerow([_inert(cell) for cell in row])


def _inert(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell
