"""Opening a recording: typed records, tables and tensors, nothing ever executed.

Everything is read lazily and checked on the way in: a damaged, foreign or hostile file ends in one `RecordingError`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lockstep.core.errors import CorruptError, NotARecordingError, RecordingError, VersionError
from lockstep.core.manifest import RankManifest, RunManifest, manifest_from_json
from lockstep.core.record import Array, Call, Content, Frame, Statistics, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.store import schema
from lockstep.store.tensors import Shard

_RANK = re.compile(r"rank\d+(-\d+)?")
_CHUNK = re.compile(r"records-(\d{5,})\.parquet")


def open_recording(path: str | Path) -> Recording:
    """Open a recording directory for reading.

    Raises
    ------
    NotARecordingError
        If the path is missing, empty or not a recording.
    VersionError
        If a newer Lockstep wrote it.
    CorruptError
        If a file is damaged.

    Examples
    --------
    >>> recording = open_recording("ref")                                               # doctest: +SKIP
    >>> recording.ranks["rank0"].calls(step=0)[0].site                                  # doctest: +SKIP
    """
    return Recording(Path(path))


class Recording:
    """What one run left: a manifest, and per rank the calls with their tensor records.

    Attributes
    ----------
    path, manifest
        Where it lies and what was run.
    ranks
        By directory name: `rank0`, `rank1` ...; a second process of the same rank is `rank0-1`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_run_manifest(path)
        names = sorted(
            (entry.name for entry in path.iterdir() if _RANK.fullmatch(entry.name)), key=_rank_order
        )
        self.ranks = {name: RankRecording(path / name) for name in names}

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, ranks={list(self.ranks)})"

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What a reader should know is not here: a run cut short, or nothing recorded at all; one sentence each."""
        if not self.ranks:
            return ("no process of the command reached a training step, so nothing was recorded",)
        return tuple(sentence for rank in self.ranks.values() for sentence in rank.missing)

    def records(self) -> Iterator[TensorRecord]:
        """All tensor records, rank by rank, step by step, in order of time."""
        for rank in self.ranks.values():
            for step in rank.steps:
                for call in rank.calls(step):
                    yield from call.records


class RankRecording:
    """One training process's part of a recording."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        value = _read_json(path / schema.MANIFEST)
        _check_version(path / schema.MANIFEST, value)
        self.manifest = manifest_from_json(RankManifest, value, str(path / schema.MANIFEST))
        self._shards: dict[int, Shard] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about what this rank lacks."""
        sentences = []
        if self.manifest.stopped_because:
            sentences.append(
                f"{self.name}: recording stopped early: {self.manifest.stopped_because}"
            )
        elif self.manifest.state != "complete":
            sentences.append(f"{self.name}: the run was cut off before the recording was closed")
        if self.manifest.schema < schema.SKETCHES_SINCE:
            sentences.append(
                f"{self.name}: its sketches are those of schema version {self.manifest.schema}, which cannot be"
                " compared with today's, so statistics have to do; record again for estimated distances"
            )
        done = {step.index for step in self.manifest.steps if step.complete}
        sentences.extend(
            f"{self.name}: step {step} is incomplete, it holds what was flushed before the end"
            for step in self.steps
            if step not in done
        )
        return tuple(sentences)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Recorded step numbers, complete or not."""
        return tuple(sorted(self.call_table["step"].unique().to_list()))

    @property
    def complete_steps(self) -> tuple[int, ...]:
        """Numbers of the steps that were recorded to their end."""
        done = {step.index for step in self.manifest.steps if step.complete}
        return tuple(step for step in self.steps if step in done)

    @cached_property
    def call_table(self) -> pl.DataFrame:
        """One row per call; columns as in `lockstep.store.schema.CALLS`."""
        return self._chunked("calls", schema.CALLS)

    @cached_property
    def record_table(self) -> pl.DataFrame:
        """One row per tensor record; columns as in `lockstep.store.schema.RECORDS`."""
        return self._chunked("records", schema.RECORDS)

    @cached_property
    def content_table(self) -> pl.DataFrame:
        """One row per distinct tensor content; columns as in `lockstep.store.schema.CONTENTS`."""
        return self._chunked("contents", schema.CONTENTS)

    @cached_property
    def module_table(self) -> pl.DataFrame:
        """One row per module of the module tree."""
        path = self.path / "modules.parquet"
        return (
            _read_table(path, schema.MODULES)
            if path.exists()
            else pl.DataFrame(schema=schema.MODULES)
        )

    def calls(self, step: int) -> list[Call]:
        """All calls of one step with their records, in order of time.

        Raises
        ------
        CorruptError
            If a row points at something that is not there.
        """
        rows = self.call_table.filter(pl.col("step") == step).sort("call_id")
        wanted = set(rows["call_id"].to_list())
        records: dict[int, list[dict[str, Any]]] = {}
        for row in self.record_table.sort("sequence").iter_rows(named=True):
            if row["call_id"] in wanted:
                records.setdefault(row["call_id"], []).append(row)
        return [
            self._call(row, records.get(row["call_id"], ())) for row in rows.iter_rows(named=True)
        ]

    def _call(self, row: dict[str, Any], records: Any) -> Call:
        where = f"{self.path}: call {row['call_id']}"
        try:
            site = Site(row["module"], row["op"], row["call"], Phase(row["phase"]))
            kind, arguments = CallKind(row["kind"]), json.loads(row["arguments"])
            tensors = tuple(self._record(row["step"], site, record) for record in records)
            if not isinstance(arguments, dict):
                raise TypeError("its arguments are not a JSON object")
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptError(f"{where} is malformed ({error}); record again") from error
        return Call(
            id=row["call_id"],
            rank=self.name,
            step=row["step"],
            kind=kind,
            site=site,
            module_class=row["module_class"],
            parent=row["parent"],
            sequence=row["sequence"],
            stack=self.stacks.get(row["stack"], ()),
            arguments=arguments,
            recomputed=row["recomputed"],
            records=tensors,
        )

    def _record(self, step: int, site: Site, row: dict[str, Any]) -> TensorRecord:
        content = self.contents.get(row["content"])
        if content is None:
            raise CorruptError(
                f"{self.path}: tensor content {row['content']} is missing; record again"
            )
        phase = Phase(row["phase"])
        return TensorRecord(
            rank=self.name,
            step=step,
            site=site if phase is site.phase else Site(site.module, site.op, site.call, phase),
            role=Role(row["role"]),
            index=row["index"],
            name=row["name"],
            sequence=row["sequence"],
            occurrence=row["occurrence"],
            content=content,
            argument=row["argument"],
        )

    @cached_property
    def contents(self) -> dict[int, Content]:
        """Every distinct tensor content by number."""
        return {
            row["content"]: self._content(row) for row in self.content_table.iter_rows(named=True)
        }

    @cached_property
    def stacks(self) -> dict[int, tuple[Frame, ...]]:
        """Call stacks by number, innermost frame first."""
        path = self.path / "stacks.parquet"
        stacks: dict[int, list[Frame]] = {}
        if path.exists():
            for number, file, line, function in _read_table(path, schema.STACKS).iter_rows():
                stacks.setdefault(number, []).append(Frame(file, line, function))
        return {number: tuple(frames) for number, frames in stacks.items()}

    def _content(self, row: dict[str, Any]) -> Content:
        number, shard, shape = row["content"], row["shard"], tuple(row["shape"])
        if not all(extent is not None and extent >= 0 for extent in shape):
            raise CorruptError(
                f"{self.path}: tensor {number} has an impossible shape {shape}; record again"
            )
        statistics = None
        if row["norm"] is not None:
            numbers: dict[str, Any] = {
                key: float("nan") if row[key] is None else row[key]
                for key in ("minimum", "maximum", "mean", "norm")
            }
            counts = {key: row[key] or 0 for key in ("nan_count", "inf_count", "zero_count")}
            statistics = Statistics(**numbers, **counts)
        sketch = None
        if row["sketch"] is not None and self.manifest.schema >= schema.SKETCHES_SINCE:
            if len(row["sketch"]) != 8 * SKETCH_SIZE:
                raise CorruptError(
                    f"{self.path}: the sketch of tensor {number} has a wrong length; record again"
                )
            sketch = np.frombuffer(row["sketch"], dtype="<f8")
        return Content(
            id=number,
            dtype=row["dtype"],
            shape=shape,
            device=row["device"],
            digest=row["digest"],
            statistics=statistics,
            sketch=sketch,
            note=row["note"] or "",
            loader=None if shard is None else lambda: self._load(shard, row["stored"], shape),
        )

    def _load(self, shard: int, stored: int, shape: tuple[int, ...]) -> Array:
        if shard not in self._shards:
            self._shards[shard] = Shard(self.path / schema.shard_name(shard))
        array = self._shards[shard].load(stored)
        if array.size != math.prod(shape):
            raise CorruptError(
                f"{self.path}: tensor {stored} has {array.size} elements, not {shape}; record again"
            )
        return array.reshape(shape)

    def _chunked(self, table: str, columns: pl.Schema) -> pl.DataFrame:
        numbers = sorted(
            int(found[1])
            for entry in self.path.iterdir()
            if (found := _CHUNK.fullmatch(entry.name))
        )
        frames = [
            _read_table(self.path / schema.chunk_name(table, number), columns) for number in numbers
        ]
        return pl.concat(frames) if frames else pl.DataFrame(schema=columns)


def _rank_order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.removeprefix("rank").split("-"))


def _read_run_manifest(path: Path) -> RunManifest:
    if not path.exists():
        raise NotARecordingError(
            f"{path}: no such directory; make one with `lockstep record -o {path} -- COMMAND`"
        )
    if not path.is_dir():
        raise NotARecordingError(
            f"{path}: is a file, not a recording directory; give the directory of `lockstep record -o`"
        )
    if not (path / schema.MANIFEST).is_file():
        kind = "is empty" if not any(path.iterdir()) else "holds no manifest.json"
        raise NotARecordingError(
            f"{path}: {kind}, so it is not a Lockstep recording; give the directory of `lockstep record -o`"
        )
    value = _read_json(path / schema.MANIFEST)
    if not isinstance(value, dict) or "schema" not in value or "command" not in value:
        raise NotARecordingError(
            f"{path}: manifest.json is not one of Lockstep's; give the directory of `lockstep record -o`"
        )
    _check_version(path / schema.MANIFEST, value)
    return manifest_from_json(RunManifest, value, str(path / schema.MANIFEST))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read ({error.strerror}); record again") from error
    except (ValueError, RecursionError) as error:
        raise CorruptError(
            f"{path}: is not valid JSON ({error}); the recording is damaged, record again"
        ) from error


def _check_version(path: Path, value: Any) -> None:
    version = value.get("schema") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise CorruptError(
            f"{path}: has no valid schema version; the recording is damaged, record again"
        )
    if version > schema.SCHEMA_VERSION:
        raise VersionError(
            f"{path}: written with schema version {version}, this Lockstep reads up to {schema.SCHEMA_VERSION};"
            " upgrade lockstep-ml"
        )


def _read_table(path: Path, columns: pl.Schema) -> pl.DataFrame:
    try:
        with path.open("rb") as file:  # a path would be taken for a pattern where it holds a * or [
            frame = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(
            f"{path}: cannot be read as Parquet ({reason}); the recording is damaged, record again"
        ) from error
    except (
        BaseException
    ) as error:  # polars raises PanicException, no Exception, on some damaged files
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise CorruptError(
            f"{path}: cannot be read as Parquet; the recording is damaged, record again"
        ) from error
    missing = [name for name in schema.ADDED if name in columns and name not in frame.columns]
    frame = frame.with_columns(pl.lit(schema.ADDED[name]).alias(name) for name in missing)
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise CorruptError(
            f"{path}: lacks the column {absent[0]!r}; the recording is damaged, record again"
        )
    try:
        table = frame.select(pl.col(name).cast(kind, strict=True) for name, kind in columns.items())
    except pl.exceptions.PolarsError as error:
        raise CorruptError(
            f"{path}: a column has a wrong type; the recording is damaged, record again"
        ) from error
    for name in columns:
        if name not in schema.NULLABLE and table[name].has_nulls():
            raise CorruptError(
                f"{path}: the column {name!r} has gaps; the recording is damaged, record again"
            )
    return table


__all__ = ["RankRecording", "Recording", "RecordingError", "open_recording"]
