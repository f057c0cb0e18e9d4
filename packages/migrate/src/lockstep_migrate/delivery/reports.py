"""The report files of a migration, under Lockstep's names or those of the vendor's own tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import OutputExistsError
from lockstep_migrate.delivery.log import write_migration_log
from lockstep_migrate.delivery.tables import (
    write_changes,
    write_unsupported_csv,
    write_unsupported_xlsx,
)
from lockstep_migrate.plan import Plan


@dataclass(frozen=True, slots=True)
class ReportNames:
    """What the reports are called; a report without a name is not written."""

    changes: str
    unsupported: str
    unsupported_csv: str
    log: str

    def writers(self) -> list[tuple[str, Callable[[Plan, Path], None]]]:
        """Each name with what writes it."""
        each: tuple[tuple[str, Callable[[Plan, Path], None]], ...] = (
            (self.changes, write_changes),
            (self.unsupported_csv, write_unsupported_csv),
            (self.unsupported, write_unsupported_xlsx),
            (self.log, write_migration_log),
        )
        return [(name, write) for name, write in each if name]


NAMES = ReportNames("changes.csv", "unsupported.xlsx", "unsupported.csv", "migrate.log")
PEER_NAMES = ReportNames("change_list.csv", "unsupported_op.xlsx", "", "msFmkTranspltlog.txt")

PEER_SUFFIX = "_msft"
"""What the vendor's tool adds to the name of the folder it writes."""

PEER_LAUNCHER = "run_distributed_npu.sh"
"""What it calls the script that starts a training on many cards."""


def write_reports(plan: Plan, folder: Path, names: ReportNames = NAMES) -> tuple[Path, ...]:
    """Write every report into a folder, which is made where it is missing.

    Raises
    ------
    OutputExistsError
        If one of them cannot be written.
    """
    paths = []
    for name, write in names.writers():
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
