"""A migration as JSON."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from migrations import BROKEN, plan

from lockstep_migrate.delivery.json import migration_json, render_migration_json
from lockstep_migrate.plan import NewFile


def test_everything_is_in_it_by_file() -> None:
    new = NewFile(PurePosixPath("run.sh"), b"", "starts one process a device", executable=True)
    value = migration_json(plan(failures=(BROKEN,), new_files=(new,)))
    assert {key: value[key] for key in ("schema", "target", "changed")} == {
        "schema": 1,
        "target": "neutral",
        "changed": 1,
    }
    assert (value["rewritten"], value["listed"], value["kept"]) == (1, 1, 1)
    file = value["files"][0]
    assert (file["file"], file["changed"], file["listed"]) == ("train.py", True, 1)
    assert [site["outcome"] for site in file["sites"]] == [
        "rewritten",
        "rewritten",
        "listed",
        "kept",
    ]
    assert file["sites"][1]["after"] == "net.to(accelerator())"
    assert value["failures"] == [{"file": "old.py", "line": 3, "reason": "invalid syntax"}]
    assert value["new_files"] == [
        {"file": "run.sh", "reason": "starts one process a device", "executable": True}
    ]


def test_the_text_is_the_same_value() -> None:
    assert json.loads(render_migration_json(plan())) == migration_json(plan())
