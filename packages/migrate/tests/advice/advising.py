"""Migrate one module in memory and look at the advice it is given."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lockstep_migrate.engine.own_names import own_names
from lockstep_migrate.engine.text import read_python
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.plan import FilePlan, Row, rows_of
from lockstep_migrate.targets import migration_targets
from lockstep_migrate.torch.python import migrate_python
from lockstep_migrate.torch.table import table_of
from lockstep_migrate.torch.unit import Settings


@dataclass(frozen=True)
class Advised:
    """A module after migrating: its text, and the rows of advice."""

    text: str
    rows: tuple[Row, ...]

    def of(self, rule: str) -> list[Row]:
        return [row for row in self.rows if row.rule == f"advice/{rule}"]

    def run(self, **given: Any) -> dict[str, Any]:
        """The names that the migrated module binds."""
        names: dict[str, Any] = dict(given)
        exec(compile(self.text, "migrated.py", "exec"), names)
        return names


def advise(text: str, target: str = "npu", *, apply: bool = False) -> Advised:
    """Migrate a module; a second run must find nothing to change."""
    chosen = migration_targets()[target]
    settings = Settings(chosen, table_of(chosen), advice=True, advice_apply=apply)
    plan = _plan(textwrap.dedent(text).encode(), settings)
    again = _plan(plan.migrated(), settings)
    assert not again.changed, again.migrated().decode()
    rows = tuple(row for row in rows_of(plan) if row.rule.startswith("advice/"))
    return Advised(plan.migrated().decode(), rows)


def _plan(data: bytes, settings: Settings) -> FilePlan:
    source = read_python(data)
    result = migrate_python(source, settings, own_names(parse(source.text)))
    return FilePlan(PurePosixPath("module.py"), source, result.mentions, result.additions)
