"""A comparison as an Excel workbook: the verdict first, then calls without partner and all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.core.finding import Comparison
from lockstep.report.comparison.lone_calls import CALL_TITLES, call_rows
from lockstep.report.comparison.pairs import TITLES, Row, table_rows
from lockstep.report.comparison.verdict_sheet import write_verdict_sheet
from lockstep.report.workbook import SHEET_ROWS, workbook_at, write_sheets

FIRST_TITLES = (
    "Outcome", "Step", "Phase", "Module", "Operator", "Tensor", "Difference", "Margin", "Cosine", "MaxAbsErr",
    "Reason", "Source",
)  # fmt: skip
"""Columns that one looks at first; all others follow in the order of `lockstep.report.comparison.pairs`."""

XLSX_TITLES = (*FIRST_TITLES, *(title for title in TITLES if title not in FIRST_TITLES))

_ORDER = tuple(TITLES.index(title) for title in XLSX_TITLES)
_WIDTHS = (11, 6, 10, 36, 36, 24, 12, 12, 12, 12, 60, 28, 60, 60)

_WHOLE = frozenset({"Step", "Call", "Index", "NaN Mismatch", "Inf Mismatch", "MaxUlp"})
_SHARES = frozenset({"One Thousandth Err Ratio", "Five Thousandths Err Ratio"})
_CALL_WIDTHS = (11, 8, 6, 10, 36, 44, 36, 36)


def write_xlsx(comparison: Comparison, path: Path, *, sheet_rows: int = SHEET_ROWS) -> None:
    """Write the verdict with its origins, the calls that only one run makes, and one line per pair.

    Rows whose accuracy is not reached by the fixed rule are yellow, as the source document marks
    them; origins are bold and red. Titles stay in view and filter. NaN and infinities are texts,
    and no text is taken for a formula or an address. A file that is there already is replaced.

    Raises OSError if the file cannot be written.
    """
    with workbook_at(path) as workbook:
        write_verdict_sheet(workbook, comparison)
        calls = list(call_rows(comparison))
        if calls:
            plain = workbook.add_format()
            rows = ((cells, plain) for cells in calls)
            write_sheets(
                workbook, "Calls without partner", CALL_TITLES, rows, len(calls), widths=_CALL_WIDTHS,
                sheet_rows=sheet_rows,
            )  # fmt: skip
        write_sheets(
            workbook,
            "Comparison",
            XLSX_TITLES,
            _rows(comparison, _Looks(workbook)),
            len(comparison.findings),
            widths=_WIDTHS,
            sheet_rows=sheet_rows,
        )


def _rows(comparison: Comparison, looks: _Looks) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for row in table_rows(comparison):
        yield tuple(row.cells[at] for at in _ORDER), looks.of(row)


class _Looks:
    """The looks of rows, by what they say; each column has its format of numbers."""

    def __init__(self, workbook: Any) -> None:
        self._workbook = workbook
        self._of = cache(self._made)

    def of(self, row: Row) -> Any:
        """The looks of one row's cells."""
        return self._of(row.reached is False, row.origin)

    def _made(self, missed: bool, origin: bool) -> tuple[Any, ...]:
        look: dict[str, Any] = {"bg_color": "#FFFF00"} if missed else {}
        look |= {"bold": True, "font_color": "#C00000"} if origin else {}
        formats: dict[str, Any] = {}
        for title in XLSX_TITLES:
            number = number_format(title)
            if number not in formats:
                formats[number] = self._workbook.add_format({**look, "num_format": number})
        return tuple(formats[number_format(title)] for title in XLSX_TITLES)


def number_format(title: str) -> str:
    """How a column shows its numbers: whole ones, shares, cosines, all others by their size."""
    if title in _WHOLE:
        return "0"
    if title in _SHARES:
        return "0.00%"
    return "0.0000000" if title == "Cosine" else "0.000E+00"
