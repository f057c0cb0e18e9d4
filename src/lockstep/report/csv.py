"""The table of all pairs as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from lockstep.core.finding import Comparison
from lockstep.report.output import writing
from lockstep.report.rows import TITLES, Cell, table_rows

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write one line per finding, UTF-8, with the titles of `lockstep.report.rows`.

    Unknown numbers are empty; texts that a spreadsheet would run as a formula start with an
    apostrophe (OWASP, CSV injection). A file that is there already is replaced.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with (
        writing(path) as aside,
        aside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TITLES)
        for row in table_rows(comparison):
            writer.writerow([_inert(cell) for cell in row.cells])


def _inert(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell
