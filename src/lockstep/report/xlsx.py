"""The table of all pairs as an Excel workbook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.core.finding import Comparison
from lockstep.report.rows import TITLES, Row, table_rows
from lockstep.report.workbook import SHEET_ROWS, workbook_at, write_sheets

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
    with workbook_at(path) as workbook:
        looks = _Looks(workbook)
        write_sheets(
            workbook,
            "Comparison",
            TITLES,
            ((row.cells, looks.of(row)) for row in table_rows(comparison)),
            len(comparison.findings),
            widths=(_NAME_WIDTH, _NAME_WIDTH),
            sheet_rows=sheet_rows,
        )


class _Looks:
    """The looks of rows, by what they say."""

    def __init__(self, workbook: Any) -> None:
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
