"""Workbooks that were written, read back from their own XML: for the tests of Lockstep and of its members."""

from __future__ import annotations

import zipfile
from pathlib import Path
from xml.etree import ElementTree

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


class Workbook:
    """The parts of a written workbook that the tests ask for, of its sheet `main` unless told otherwise."""

    def __init__(self, path: Path, main: int = 1) -> None:
        self.main = main
        with zipfile.ZipFile(path) as archive:
            self.names = archive.namelist()
            self.parts = {
                name: ElementTree.fromstring(archive.read(name))
                for name in self.names
                if name.endswith(".xml")
            }

    def sheet(self, number: int = 0) -> ElementTree.Element:
        return self.parts[f"xl/worksheets/sheet{number or self.main}.xml"]

    def rows(self, number: int = 0) -> list[list[str]]:
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

    def number_format(self, row: int, column: int) -> str:
        """How a cell of the pairs shows its number."""
        styles = self.parts["xl/styles.xml"]
        cell = list(self.sheet().iter(f"{MAIN}row"))[row][column]
        found = styles.find(f"{MAIN}cellXfs")[int(cell.attrib["s"])]  # type: ignore[index]
        number = int(found.attrib["numFmtId"])
        built_in = {1: "0", 10: "0.00%", 11: "0.00E+00"}
        own = {
            int(one.attrib["numFmtId"]): one.attrib["formatCode"]
            for one in styles.iter(f"{MAIN}numFmt")
        }
        return own.get(number) or built_in[number]
