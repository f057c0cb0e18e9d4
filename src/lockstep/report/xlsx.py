"""The table of all pairs as an Excel workbook."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xlsxwriter
from xlsxwriter.exceptions import FileCreateError

from lockstep.core.finding import Comparison
from lockstep.report.output import writing
from lockstep.report.rows import TITLES, Cell, Row, table_rows

SHEET_ROWS = 1_048_576
"""Rows that a sheet can hold, the title row included (Excel specifications and limits)."""

_OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
}
_NAME_WIDTH = 60


def write_xlsx(comparison: Comparison, path: Path, *, sheet_rows: int = SHEET_ROWS) -> None:
    """Write one line per finding, with the titles of `lockstep.report.rows`.

    Rows whose accuracy is not reached by the fixed rule are yellow, as the source document marks
    them; origins are bold and red. Titles stay in view and filter. NaN and infinities are texts,
    and no text is taken for a formula or an address. A file that is there already is replaced.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    rows, count = table_rows(comparison), len(comparison.findings)
    with writing(path) as aside, aside.open("wb") as file:
        workbook = xlsxwriter.Workbook(file, _OPTIONS)
        formats = _Formats(workbook)
        per_sheet = sheet_rows - 1
        for number, start in enumerate(range(0, max(1, count), per_sheet), start=1):
            name = "Comparison" if number == 1 else f"Comparison {number}"
            sheet, here = workbook.add_worksheet(name), min(per_sheet, count - start)
            _write_sheet(sheet, itertools.islice(rows, here), here, formats)
        try:
            workbook.close()
        except FileCreateError as error:
            cause = error.args[0] if error.args else error
            raise cause if isinstance(cause, OSError) else OSError(str(cause)) from error


class _Formats:
    """The looks of rows, by what they say."""

    def __init__(self, workbook: Any) -> None:
        self.title = workbook.add_format({"bold": True, "bottom": 1})
        self._plain = workbook.add_format()
        self._missed = workbook.add_format({"bg_color": "#FFFF00"})
        self._origin = workbook.add_format({"bold": True, "font_color": "#C00000"})
        self._missed_origin = workbook.add_format(
            {"bold": True, "font_color": "#C00000", "bg_color": "#FFFF00"}
        )

    def of(self, row: Row) -> Any:
        """The look of one row."""
        if row.reached is False:
            return self._missed_origin if row.origin else self._missed
        return self._origin if row.origin else self._plain


def _write_sheet(sheet: Any, rows: Iterable[Row], count: int, formats: _Formats) -> None:
    last = len(TITLES) - 1
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, max(1, count), last)
    sheet.set_column(0, last, 14)
    sheet.set_column(0, 1, _NAME_WIDTH)
    for column, title in enumerate(TITLES):
        sheet.write_string(0, column, title, formats.title)
    for line, row in enumerate(rows, start=1):
        look = formats.of(row)
        for column, cell in enumerate(row.cells):
            _write_cell(sheet, line, column, cell, look)


def _write_cell(sheet: Any, line: int, column: int, cell: Cell, look: Any) -> None:
    if cell is None:
        sheet.write_blank(line, column, None, look)
    elif isinstance(cell, str) or not math.isfinite(cell):
        text = str(cell).encode("utf-8", "backslashreplace").decode()
        sheet.write_string(line, column, text, look)
    else:
        sheet.write_number(line, column, cell, look)
