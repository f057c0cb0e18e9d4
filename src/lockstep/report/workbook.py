"""Tables as Excel workbooks; no text in them is run as a formula."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.core.replacement import replacing
from lockstep.report.csv_tables import Cell

SHEET_ROWS = 1_048_576
"""Rows that a sheet can hold, the title row included (Excel specifications and limits)."""

CELL_CHARACTERS = 32_767
"""Characters that a cell can hold (the same)."""

_OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
}
_WIDTH = 14


@contextmanager
def workbook_at(path: Path) -> Iterator[Any]:
    """An empty workbook, written to `path` at the end of the block.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    import xlsxwriter  # takes as long to load as a small job takes, and few ask for a workbook
    from xlsxwriter.exceptions import FileCreateError

    with replacing(path) as aside, aside.open("wb") as file:
        workbook = xlsxwriter.Workbook(file, _OPTIONS)
        yield workbook
        try:
            workbook.close()
        except FileCreateError as error:
            cause = error.args[0] if error.args else error
            raise cause if isinstance(cause, OSError) else OSError(str(cause)) from error


def write_sheets(
    workbook: Any,
    name: str,
    titles: Sequence[str],
    rows: Iterable[tuple[Sequence[Cell], Any]],
    count: int,
    *,
    widths: Sequence[float] = (),
    sheet_rows: int = SHEET_ROWS,
) -> None:
    """Write a table into as many sheets as it needs; titles stay in view and filter.

    Parameters
    ----------
    workbook
        From `workbook_at`.
    name
        Of the first sheet; the next ones add their number.
    titles
        Of the columns.
    rows
        Cells of each row and their looks, one for all of them or one each.
    count
        How many rows there are.
    widths
        Of the first columns, in characters; all others are 14 wide.
    sheet_rows
        Rows that a sheet can hold, the title row included.
    """
    rows, per_sheet = iter(rows), sheet_rows - 1
    bold = workbook.add_format({"bold": True, "bottom": 1})
    for number, start in enumerate(range(0, max(1, count), per_sheet), start=1):
        sheet = workbook.add_worksheet(name if number == 1 else f"{name} {number}")
        here = min(per_sheet, count - start)
        _head(sheet, titles, here, widths, bold)
        for line, (cells, look) in enumerate(itertools.islice(rows, here), start=1):
            write_row(sheet, line, cells, look)


def _head(
    sheet: Any, titles: Sequence[str], count: int, widths: Sequence[float], bold: Any
) -> None:
    last = len(titles) - 1
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, max(1, count), last)
    sheet.set_column(0, last, _WIDTH)
    for column, width in enumerate(widths):
        sheet.set_column(column, column, width)
    for column, title in enumerate(titles):
        sheet.write_string(0, column, title, bold)


def write_row(sheet: Any, line: int, cells: Sequence[Cell], look: Any) -> None:
    """Write one row, from the first column on; `look` is for all cells, or a tuple of one each."""
    looks = look if isinstance(look, tuple) else itertools.repeat(look)
    for column, (cell, own) in enumerate(zip(cells, looks, strict=False)):
        _write_cell(sheet, line, column, cell, own)


def _write_cell(sheet: Any, line: int, column: int, cell: Cell, look: Any) -> None:
    if cell is None:
        sheet.write_blank(line, column, None, look)
    elif isinstance(cell, str) or not math.isfinite(cell):
        text = str(cell).encode("utf-8", "backslashreplace").decode()
        sheet.write_string(line, column, text[:CELL_CHARACTERS], look)
    else:
        sheet.write_number(line, column, cell, look)
