"""XLSX: read back from the file's own XML."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockstep.core.finding import Comparison
from lockstep.report.rows import TITLES
from lockstep.report.xlsx import write_xlsx

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


class Workbook:
    """The parts of a written workbook that the tests ask for."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            self.names = archive.namelist()
            self.parts = {
                name: ElementTree.fromstring(archive.read(name))
                for name in self.names
                if name.endswith(".xml")
            }

    def sheet(self, number: int = 1) -> ElementTree.Element:
        return self.parts[f"xl/worksheets/sheet{number}.xml"]

    def rows(self, number: int = 1) -> list[list[str]]:
        return [
            ["".join(cell.itertext()) for cell in row]
            for row in self.sheet(number).iter(f"{MAIN}row")
        ]

    def sheet_names(self) -> list[str]:
        return [
            sheet.attrib["name"] for sheet in self.parts["xl/workbook.xml"].iter(f"{MAIN}sheet")
        ]

    def looks(self, row: int) -> tuple[bool, bool]:
        """Whether a row (0 is the title) is yellow, and whether it is bold."""
        styles = self.parts["xl/styles.xml"]
        cell = list(self.sheet().iter(f"{MAIN}row"))[row][0]
        found = styles.find(f"{MAIN}cellXfs")[int(cell.attrib.get("s", "0"))]  # type: ignore[index]
        fill = styles.find(f"{MAIN}fills")[int(found.attrib["fillId"])]  # type: ignore[index]
        font = styles.find(f"{MAIN}fonts")[int(found.attrib["fontId"])]  # type: ignore[index]
        return "FFFF00" in ElementTree.tostring(fill).decode(), font.find(f"{MAIN}b") is not None


def test_every_pair_is_a_row_under_the_titles(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    rows = Workbook(tmp_path / "out.xlsx").rows()
    assert tuple(rows[0]) == TITLES
    assert len(rows) == 5
    assert rows[2][TITLES.index("Cosine")] == "0.4312"
    assert rows[4][TITLES.index("Reference Name")] == ""


def test_titles_stay_in_view_and_filter(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    sheet = Workbook(tmp_path / "out.xlsx").sheet()
    pane, autofilter = next(sheet.iter(f"{MAIN}pane")), next(sheet.iter(f"{MAIN}autoFilter"))
    assert (pane.attrib["ySplit"], pane.attrib["state"]) == ("1", "frozen")
    assert re.fullmatch(r"A1:[A-Z]{2}5", autofilter.attrib["ref"])


def test_rows_not_reached_are_yellow_and_origins_bold(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    workbook = Workbook(tmp_path / "out.xlsx")
    assert [workbook.looks(row) for row in range(1, 5)] == [
        (False, False),
        (True, True),
        (False, False),
        (False, False),
    ]


def test_nothing_is_a_formula_an_address_or_a_broken_number(
    hostile: Comparison, tmp_path: Path
) -> None:
    write_xlsx(hostile, tmp_path / "out.xlsx")
    workbook = Workbook(tmp_path / "out.xlsx")
    assert not list(workbook.sheet().iter(f"{MAIN}f"))
    assert not list(workbook.sheet().iter(f"{MAIN}hyperlink"))
    rows = workbook.rows()
    assert rows[1][TITLES.index("Module")] == "=1+1"
    assert rows[4][TITLES.index("Module")] == "\\ud800"
    assert rows[1][TITLES.index("MaxAbsErr")] == "inf"
    assert rows[1][TITLES.index("Reference Max")] == "nan"


def test_more_rows_than_a_sheet_holds_go_to_the_next(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx", sheet_rows=3)
    workbook = Workbook(tmp_path / "out.xlsx")
    assert workbook.sheet_names() == ["Comparison", "Comparison 2"]
    assert [len(workbook.rows(number)) for number in (1, 2)] == [3, 3]
    assert tuple(workbook.rows(2)[0]) == TITLES


def test_a_comparison_without_findings_has_its_titles(
    incomparable: Comparison, tmp_path: Path
) -> None:
    write_xlsx(incomparable, tmp_path / "out.xlsx")
    assert Workbook(tmp_path / "out.xlsx").rows() == [list(TITLES)]


def test_a_path_that_cannot_be_written_is_an_error_of_the_system(
    agreed: Comparison, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        write_xlsx(agreed, tmp_path / "missing" / "out.xlsx")
    assert not list(tmp_path.iterdir())
