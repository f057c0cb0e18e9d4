"""A migration as JSON, for other tools."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lockstep.terminal import json_text
from lockstep_migrate.delivery.rows import counts_of, counts_of_plan, edit_rows
from lockstep_migrate.plan import FilePlan, Plan, Row

JSON_SCHEMA_VERSION = 1


def migration_json(plan: Plan) -> dict[str, Any]:
    """Everything that a plan says, as JSON values; lines and columns count from 1.

    Examples
    --------
    >>> migration_json(plan)["rewritten"]                                       # doctest: +SKIP
    17
    """
    return {
        "schema": JSON_SCHEMA_VERSION,
        "target": plan.target,
        "changed": sum(file.changed for file in plan.files),
        **asdict(counts_of_plan(plan)),
        "files": [_file(file) for file in plan.files],
        "new_files": [
            {"file": str(new.path), "reason": new.reason, "executable": new.executable}
            for new in plan.new_files
        ],
        "failures": [
            {"file": str(failure.path), "line": failure.line or None, "reason": failure.reason}
            for failure in plan.failures
        ],
    }


def render_migration_json(plan: Plan) -> str:
    """The same as strict JSON text, ASCII only."""
    return json_text(migration_json(plan))


def _file(file: FilePlan) -> dict[str, Any]:
    return {
        "file": str(file.path),
        "changed": file.changed,
        **asdict(counts_of(file)),
        "sites": [_site(row) for row in edit_rows(file)],
    }


def _site(row: Row) -> dict[str, Any]:
    values = asdict(row)
    del values["file"]
    return {**values, "outcome": row.outcome.value}
