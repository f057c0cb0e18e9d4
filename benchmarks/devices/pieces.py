"""The campaign in pieces of a few minutes, and a journal from which a killed run goes on.

A row is written to the journal once it is done, and a recording gets its name once it is complete. So whatever ends a
run, the same command goes on with the first row that is not in the journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pairs import Row, Side

PIECE_S = 480.0
"""Many machines with a device are lent for ten minutes at a time."""

RECORD_S, COMPILE_S, COMPARE_S = 11.0, 45.0, 7.0
"""What one takes on two busy CPU cores, 2026-11-29; start-up of Python and torch is half of it."""


class Journal:
    """What is known of each row that was done; one JSON line each.

    Parameters
    ----------
    path
        The file. A last line that a kill cut off counts as not written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        whole = [
            line for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]
        self.done = {one["row"]: one for one in map(json.loads, whole)}
        self._path.write_text("".join(whole))

    def add(self, row: Row, said: dict[str, Any]) -> None:
        """Keep what was said of a row, on disk before this returns."""
        entry = {"row": row.name, **said}
        self.done[row.name] = entry
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def left(self, rows: Iterable[Row]) -> list[Row]:
        """Rows that are still to be done."""
        return [row for row in rows if row.name not in self.done]


def pieces_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in order, cut where a piece would take longer than `PIECE_S`."""
    pieces: list[list[Row]] = []
    spent, made = PIECE_S, set[tuple[str, Side]]()
    for row in rows:
        needed = seconds_of(row, made)
        if spent + needed > PIECE_S:
            pieces.append([])
            spent = 0.0
        pieces[-1].append(row)
        spent += needed
        made |= {(row.group, side) for side in row.sides}
    return pieces


def seconds_of(row: Row, made: set[tuple[str, Side]]) -> float:
    """About how long a row takes where these recordings are there."""
    new = [side for side in row.sides if (row.group, side) not in made]
    records = sum(
        RECORD_S * (2 if side.fault else 1) + COMPILE_S * (side.variant == "compiled")
        for side in new
    )
    return COMPARE_S + records


def still_needed(left: Iterable[Row]) -> set[tuple[str, str]]:
    """Group and name of the recordings that rows to come compare."""
    return {(row.group, side.name) for row in left for side in row.sides}
