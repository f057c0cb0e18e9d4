"""Published error codes: read from the CSV files in `codes`, one row a code.

A row whose code ends in `*` explains its family: every code that begins so and has no row of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SAID = "said"
"""The group of a pattern that has the message's own words: no code, and shown as it is."""
_FOLDER = Path(__file__).parent / "codes"


@dataclass(frozen=True, slots=True)
class CodeTable:
    """Rows by code, by name and by text.

    rows: Each row under each of its keys: the columns `code`, `name`, `alias` and `text`, where the table has them.
    families: Rows of families by what their codes begin with, the longest first.
    """

    rows: Mapping[str, Mapping[str, str]]
    families: tuple[tuple[str, Mapping[str, str]], ...]

    def explained(self, groups: Mapping[str, str]) -> dict[str, str] | None:
        """Return the groups of a pattern with the columns of the row that they name; None where there is no row."""
        # A number is the weakest key: those of CUDA meant something else before CUDA 10.1.
        texts = [text for name, text in groups.items() if text and name != SAID]
        keys = sorted(map(_folded, texts), key=str.isdigit)
        row = next((self.rows[key] for key in keys if key in self.rows), None)
        if row is None:
            row = next((one for key in keys if (one := self._family_of(key)) is not None), None)
        if row is None:
            return None
        return {**groups, **row, **{name: text for name, text in groups.items() if text}}

    def _family_of(self, key: str) -> Mapping[str, str] | None:
        return next((row for begin, row in self.families if key.startswith(begin)), None)


def _folded(key: str) -> str:
    return key.strip(" .'\"").replace("_", "").lower()


@cache
def code_table(name: str) -> CodeTable:
    """Return the table of a CSV file in `codes`."""
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    families = {_folded(row["code"][:-1]): row for row in rows if row["code"].endswith("*")}
    single = [row for row in rows if not row["code"].endswith("*")]
    keys = {
        _folded(row[column]): row
        for column in ("text", "alias", "name", "code")
        for row in reversed(single)
        if row.get(column)
    }
    return CodeTable(keys, tuple(sorted(families.items(), key=lambda item: -len(item[0]))))
