"""Made-up trainings as recordings that lie in memory: a comparison of them reads no file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl

from lockstep.core.manifest import Options, RankManifest, RunManifest
from lockstep.store import schema
from lockstep.store.reader import Recording
from lockstep.testing.made_training import Alteration, Array
from lockstep.testing.made_training import MadeTraining as TinyRun

__all__ = ["Alteration", "Array", "TinyRun", "recording"]


def recording(*ranks: TinyRun, path: str = "run") -> Recording:
    """Runs as the recording that they would leave, one per rank."""
    folders = {f"rank{number}": _rank(run) for number, run in enumerate(ranks)}
    return cast(
        Recording,
        SimpleNamespace(
            path=Path(path),
            new_beside=Path(path),
            ranks=folders,
            missing=(),
            close_tensors=lambda: None,
            manifest=RunManifest(
                4, "1", "", ["python", "train.py"], "", Options(), state="complete", exit_code=0
            ),
            unrecorded=(),
            is_of_another_tool=False,
            other_framework="",
            put_together_of=None,
            has_whole_calls=any(rank.has_tensors for rank in folders.values()),
        ),
    )


_MODULES = {name: schema.MODULES[name] for name in ("module", "module_class")}
_CALLS = {name: schema.CALLS[name] for name in ("step", "kind", "module", "op", "parent")}


def _rank(run: TinyRun) -> Any:
    numbers = tuple(range(len(run.steps)))
    calls = [call for step in run.steps for call in step]
    modules = {call.site.module: call.module_class for call in calls if call.module_class}
    return SimpleNamespace(
        steps=numbers,
        complete_steps=numbers,
        states=(),
        held=(),
        held_settings=None,
        losses=(),
        index=lambda told: None,
        calls=lambda step, kind=None: [
            call for call in run.steps[step] if kind in (None, call.kind)
        ],
        module_table=pl.DataFrame(
            {"module": list(modules), "module_class": list(modules.values())}, schema=_MODULES
        ),
        call_table=pl.DataFrame(
            [
                (call.step, call.kind.value, call.site.module, call.site.op, call.parent)
                for call in calls
            ],
            schema=_CALLS,
            orient="row",
        ),
        record_count=sum(len(call.records) for call in calls),
        has_tensors=False,
        name="rank0",
        path=Path("no-such-run"),
        is_closed=True,
        manifest=RankManifest(4, "rank0", 1, 1, [], "3.11"),
        missing=(),
        close_tensors=lambda: None,
    )
