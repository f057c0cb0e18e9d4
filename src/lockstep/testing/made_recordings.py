"""Recordings on disk of made-up trainings, written by the writer that records; and one that is damaged."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path

import numpy as np

from lockstep.core.arguments import path_of
from lockstep.core.errors import UsageError
from lockstep.core.manifest import OptimizerSetup, Options, RankManifest, StepSummary
from lockstep.core.records import Call, Content
from lockstep.store import schema
from lockstep.store.directory import RunDirectory
from lockstep.store.tensors import RawTensor
from lockstep.store.writer import RankWriter
from lockstep.testing.made_training import MadeTraining

_COMMAND = ["python", "train.py"]


def write_recording(path: Path | str, *ranks: MadeTraining) -> Path:
    """Write the recording that trainings would leave, one per rank; takes some hundredths of a second.

    Parameters
    ----------
    path
        A directory that is not there yet.
    ranks
        The training of each rank.

    Returns
    -------
    Path
        Where it lies.

    Raises
    ------
    UsageError
        If there is no training.
    OutputExistsError
        If something is there, or it cannot be written.

    Examples
    --------
    >>> write_recording("ref", MadeTraining(steps=2))                       # doctest: +SKIP
    >>> write_recording("cand", MadeTraining(steps=2, alter={"relu": abs})) # doctest: +SKIP
    """
    if not ranks:
        raise UsageError("a recording has a rank at least; give a training")
    save = "tensors" if ranks[0].whole else "sketch"
    options = Options(steps=f"0:{max(len(run.steps) for run in ranks)}", save=save)
    directory = RunDirectory.create(path_of("path", path), list(_COMMAND), options, force=False)
    for number, run in enumerate(ranks):
        folder = directory.path / f"rank{number}"
        folder.mkdir()
        _write_rank(folder, run, world_size=len(ranks))
    directory.finish(exit_code=0)
    return directory.path


def damage(recording: Path) -> Path:
    """Cut the last table of a recording's first rank in half, as a broken disk or copy does; returns the recording."""
    table = max((recording / "rank0").glob("records-*.parquet"))
    data = table.read_bytes()
    table.write_bytes(data[: len(data) // 2])
    return recording


def _write_rank(folder: Path, run: MadeTraining, *, world_size: int) -> None:
    writer = RankWriter(folder)
    for module, made_by in _modules(run).items():
        writer.add_module((module, made_by, 0, True, "{}"))
    known: set[int] = set()
    for call in (call for step in run.steps for call in step):
        for record in call.records:
            if record.content.id not in known:
                known.add(record.content.id)
                _add_content(writer, record.content)
            writer.add_record(
                (
                    call.id, record.site.phase.value, record.role.value, record.index, record.name,
                    record.sequence, record.occurrence, record.content.id, record.argument, "",
                )
            )  # fmt: skip
        writer.add_call(_call_row(call))
    manifest = _manifest(folder.name, run, world_size)
    writer.end(lambda: dataclasses.asdict(manifest))
    writer.wait()
    if writer.failure:
        raise UsageError(f"{folder}: {writer.failure}")


def _call_row(call: Call) -> tuple[object, ...]:
    return (
        call.id, call.step, call.kind.value, call.site.phase.value, call.site.module,
        call.module_class, call.site.op, call.site.call, call.parent, call.sequence, -1,
        json.dumps(call.arguments), call.recomputed, "", schema.NO_CONTENT,
    )  # fmt: skip


def _add_content(writer: RankWriter, content: Content) -> None:
    stored = shard = None
    if content.loader is not None:
        data = np.ascontiguousarray(content.load()).reshape(-1).view(np.uint8)
        stored = content.id
        shard = writer.add_tensor(RawTensor(stored, content.dtype, content.shape, data))
    sketch = None if content.sketch is None else content.sketch.astype("<f8").tobytes()
    assert content.statistics is not None
    writer.add_content(
        (
            content.id, content.dtype, list(content.shape), content.device, content.digest,
            *dataclasses.astuple(content.statistics), sketch, stored, shard, None,
        )
    )  # fmt: skip


def _modules(run: MadeTraining) -> dict[str, str]:
    calls = [call for step in run.steps for call in step]
    return {call.site.module: call.module_class for call in calls if call.module_class}


def _manifest(rank: str, run: MadeTraining, world_size: int) -> RankManifest:
    manifest = RankManifest(
        schema.SCHEMA_VERSION, rank, world_size, 1, _COMMAND[1:], platform.python_version(),
        state="complete", devices=["cpu"],
    )  # fmt: skip
    manifest.steps = [
        StepSummary(number, complete=True, calls=len(calls))
        for number, calls in enumerate(run.steps)
    ]
    manifest.trained = len(run.steps)
    names = list(run.parameters)
    manifest.optimizers = [
        OptimizerSetup(
            0, step, "torch.optim.SGD", [{"lr": run.settings["lr"]}], [names] if not step else []
        )
        for step in range(len(run.steps))
    ]
    manifest.trainable = dict.fromkeys(names, True)
    return manifest
