"""The table of all pairs as CSV."""

from __future__ import annotations

from pathlib import Path

from lockstep.core.finding import Comparison
from lockstep.report.comparison.pairs import TITLES, table_rows
from lockstep.report.csv_tables import write_csv_table


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write one line per finding, with the titles of `lockstep.report.comparison.pairs`; unknown numbers are empty.

    Raises OSError if the file cannot be written.
    """
    write_csv_table(path, TITLES, (row.cells for row in table_rows(comparison)))
