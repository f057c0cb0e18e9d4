"""Everything that a page shows of one recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from lockstep.core.records import TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.reading.recorded_series import losses_of, scalars_of, tensors_of
from lockstep.reading.recorded_values import values_of
from lockstep.store.reader import RankRecording, Recording
from lockstep.wings.report.batch_pictures import picture_of
from lockstep.wings.report.comparison_data import run_of
from lockstep.wings.report.module_tree import around, with_those_around
from lockstep.wings.report.recording_types import BatchTensor, Fact, RecordedModule, RecordingData
from lockstep.wings.report.source_excerpts import excerpts

_MOST_OF_BATCH = 12


def gather_recording(recording: Recording) -> RecordingData:
    """Everything that a page shows of one recording. Raises CorruptError if a file of it is damaged."""
    tensors, left_out = tensors_of(recording)
    files = [file for file in recording.path.rglob("*") if file.is_file()]
    return RecordingData(
        run=run_of(recording.path.name or str(recording.path), recording),
        facts=tuple(_facts(recording)),
        missing=recording.missing,
        losses=tuple(losses_of(recording)),
        scalars=tuple(scalars_of(recording, tensors)),
        tensors=tuple(tensors),
        values=tuple(values_of(recording)),
        left_out=left_out,
        batch=tuple(_batch(recording)),
        modules=_modules(recording),
        sources=excerpts(_places(recording), [recording]),
        records=sum(rank.record_count for rank in recording.ranks.values()),
        contents=sum(rank.content_count for rank in recording.ranks.values()),
        size_bytes=sum(file.stat().st_size for file in files),
    )


def _facts(recording: Recording) -> Iterator[Fact]:
    manifest = recording.manifest
    options = manifest.options
    yield Fact("recording", "made", manifest.created)
    yield Fact("recording", "Lockstep", manifest.version)
    for name in ("steps", "level", "save", "ranks", "seed", "emulate"):
        value = getattr(options, name)
        if value not in ("", None):
            yield Fact("recording", name, str(value))
    for name, value in manifest.git.items():
        yield Fact("git", name, value)
    if recording.ranks:
        yield from _facts_of_rank(next(iter(recording.ranks.values())))


def _facts_of_rank(rank: RankRecording) -> Iterator[Fact]:
    """What the first rank says of its process and machine."""
    manifest = rank.manifest
    yield Fact("machine", "devices", ", ".join(manifest.devices))
    yield from _each("machine", manifest.platform)
    yield Fact("packages", "python", manifest.python)
    yield from _each("packages", manifest.packages)
    yield from _each("settings of torch", manifest.numerics)
    yield from _each("mixed precision", manifest.mixed_precision)
    yield from _each("seeds", manifest.seeds)
    yield Fact("ranks", "trained", str(manifest.world_size))
    yield from _each("ranks", manifest.distributed)
    yield from _each("environment", manifest.environment)
    for noted in manifest.optimizers:
        if noted.step == manifest.optimizers[0].step:
            for number, group in enumerate(noted.groups):
                title = f"{noted.name}, group {number}" if len(noted.groups) > 1 else noted.name
                yield from _each(title, group)


def _each(group: str, values: Mapping[str, object]) -> Iterator[Fact]:
    return (Fact(group, name, str(value)) for name, value in values.items())


def _batch(recording: Recording) -> Iterator[BatchTensor]:
    """What went into the first recorded step of the first rank: its data, then what the model itself was given."""
    rank = next(iter(recording.ranks.values()), None)
    if rank is None or not rank.steps:
        return
    met: set[int] = set()
    for record in _given(rank, rank.steps[0]):
        if record.content.id not in met and len(met) < _MOST_OF_BATCH:
            met.add(record.content.id)
            yield picture_of(record)
    rank.close_tensors()


def _given(rank: RankRecording, step: int) -> Iterator[TensorRecord]:
    for call in rank.calls(step, kind=CallKind.DATA):
        yield from call.with_role(Role.OUTPUT)
    outer = next((one for one in rank.calls(step, kind=CallKind.MODULE) if one.parent < 0), None)
    if outer is not None:
        yield from outer.with_role(Role.INPUT)


def _modules(recording: Recording) -> tuple[RecordedModule, ...]:
    """The module tree of the first rank, with the sizes of what is inside."""
    rank = next(iter(recording.ranks.values()), None)
    table = rank.module_table if rank is not None else pl.DataFrame()
    rows = {row["module"]: row for row in table.iter_rows(named=True)}
    paths = with_those_around(list(rows))
    numbers = {path: number for number, path in enumerate(paths)}
    parents = [numbers[around(path)] if path else -1 for path in paths]
    inside = [int(rows.get(path, {}).get("parameters") or 0) for path in paths]
    own = list(inside)
    for number in range(len(paths) - 1, 0, -1):
        inside[parents[number]] += inside[number]
    return tuple(
        RecordedModule(
            path,
            row.get("module_class", ""),
            parents[number],
            own[number],
            inside[number],
            row.get("training"),
            row.get("settings", "{}"),
        )
        for number, path in enumerate(paths)
        for row in [rows.get(path, {})]
    )


def _places(recording: Recording) -> list[str]:
    """The user's line of each call stack."""
    stacks = [stack for rank in recording.ranks.values() for stack in rank.stacks.values()]
    own = (next((frame for frame in stack if not frame.library), None) for stack in stacks)
    return list(dict.fromkeys(str(frame) for frame in own if frame is not None))
