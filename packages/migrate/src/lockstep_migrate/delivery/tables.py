"""A migration as tables: every site, and those that need a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import OutputExistsError
from lockstep.terminal import Cell, write_csv_table
from lockstep_migrate.delivery.rows import (
    CELL_CHARACTERS,
    NEW_FILE,
    UNREADABLE,
    cut,
    edit_rows,
    listed_rows,
)
from lockstep_migrate.files.collection import CHANGES
from lockstep_migrate.plan import Outcome, Plan, Row

CHANGE_TITLES = (
    "file", "line", "column", "rule id", "outcome", "before", "after", "reason", "replacement",
)  # fmt: skip
UNSUPPORTED_TITLES = ("API", "file", "line", "why", "replacement", "rule id")


def write_changes(plan: Plan, path: Path) -> None:
    """Write `changes.csv`: every site with its outcome, heads of files, new and failed files.

    Raises OSError if the file cannot be written.
    """
    write_csv_table(path, CHANGE_TITLES, _changes(plan))


def write_unsupported_csv(plan: Plan, path: Path) -> None:
    """Write `unsupported.csv`: the sites that need a person. Raises OSError if the file cannot be written."""
    write_csv_table(path, UNSUPPORTED_TITLES, map(_unsupported, listed_rows(plan)))


REPORTS = {CHANGES: write_changes, "unsupported.csv": write_unsupported_csv}
"""The reports by their names."""


def write_reports(plan: Plan, folder: Path) -> tuple[Path, ...]:
    """Write every report into a folder, which is made where it is missing.

    Raises OutputExistsError if one of them cannot be written.
    """
    paths = []
    for name, write in REPORTS.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(plan, path)
        except OSError as error:
            raise OutputExistsError(
                f"{path}: cannot be written ({error.strerror or error}); give another folder with --report"
            ) from error
        paths.append(path)
    return tuple(paths)


def api_of(row: Row) -> str:
    """What a site uses, on one line and short enough for a cell."""
    return cut(row.before)


def _changes(plan: Plan) -> Iterator[tuple[Cell, ...]]:
    for file in plan.files:
        for row in edit_rows(file):
            plain = row.outcome is Outcome.REWRITTEN  # its rule says why; the log does, too
            yield (
                row.file, row.line, row.column, row.rule, row.outcome.value, _cell(row.before),
                _cell(row.after) if row.outcome.is_change else "", "" if plain else row.reason,
                row.replacement,
            )  # fmt: skip
    for new in plan.new_files:
        yield str(new.path), None, None, NEW_FILE, "added", "", "", new.reason, ""
    for failure in plan.failures:
        line = failure.line or None
        yield str(failure.path), line, None, UNREADABLE, "failed", "", "", failure.reason, ""


def _cell(text: str) -> str:
    """A text as it stands; of a long one the beginning."""
    return text if len(text) <= CELL_CHARACTERS else cut(text)


def _unsupported(row: Row) -> tuple[Cell, ...]:
    return api_of(row), row.file, row.line, row.reason, row.replacement, row.rule
