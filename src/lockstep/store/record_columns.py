"""Records of one rank as rows: of all that is kept of a tensor only the columns that are asked for are read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from enum import Enum

import polars as pl

from lockstep.core.errors import CorruptError
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store import schema
from lockstep.store.limits import MOST_ELEMENTS
from lockstep.store.tables import Chunks, Index

OF_A_RECORD = frozenset(schema.RECORDS) - {"call_id"}
OF_A_CONTENT = frozenset(schema.CONTENTS) - {"content"}

_ALWAYS_READ = frozenset({"call_id", "sequence", "role"})
"""The role tells samples of updates, which are no records of the table."""

_FILES_AT_ONCE = 64


def record_rows(
    chunks: Chunks, index: Index, calls: pl.DataFrame, columns: Collection[str]
) -> pl.DataFrame:
    """Records of some calls, in order of time, with the number of their call.

    calls: Rows of the table of calls, with `call_id` and `step`.
    columns: Names in `schema.RECORDS` and `schema.CONTENTS`; just these are read.

    Raises CorruptError if a file is damaged, or a row points at something that is not there or makes no sense.
    """
    numbers = sorted(
        {place for step in calls["step"].unique().to_list() for place in index.record_chunks(step)}
    )
    of_content = OF_A_CONTENT.intersection(columns)
    wanted = _ALWAYS_READ.union(OF_A_RECORD.intersection(columns))
    wanted |= {"content"} if of_content else set()
    kinds = _columns(schema.RECORDS, wanted)
    found = [pl.DataFrame(schema=kinds)]
    for some in _batches(numbers):
        frames = chunks.many("records", some, kinds)
        found.append(pl.concat(frames).join(calls.select("call_id"), on="call_id", how="semi"))
    rows = pl.concat(found).sort("sequence", maintain_order=True)
    _check_names(chunks, calls, "kind", CallKind)
    _check_names(chunks, calls, "phase", Phase)
    _check_names(chunks, rows, "phase", Phase)
    _check_names(chunks, rows, "role", Role)
    rows = rows.filter(pl.col("role") != Role.SAMPLE.value)
    if of_content:
        told = _contents(chunks, index, rows["content"], of_content)
        rows = rows.join(told, on="content", how="left", maintain_order="left")
    return rows.select("call_id", *columns)


def _contents(
    chunks: Chunks, index: Index, numbers: pl.Series, columns: Collection[str]
) -> pl.DataFrame:
    """Columns of these contents, each once, by number."""
    wanted = set(numbers.to_list())
    kinds = _columns(schema.CONTENTS, {"content", *columns})
    places = index.places(wanted)
    found = [pl.DataFrame(schema=kinds)]
    for some in _batches(sorted(places)):
        frames = chunks.many("contents", some, kinds)
        found += [frame[places[number][1]] for number, frame in zip(some, frames, strict=True)]
    told = pl.concat(found)
    if missing := wanted - set(told["content"].to_list()):
        raise CorruptError(chunks.directory, f"tensor content {min(missing)} is missing")
    if "shape" in columns:
        _check_shapes(chunks, told)
    return told


def _check_shapes(chunks: Chunks, told: pl.DataFrame) -> None:
    """As of a content that is read whole."""
    for extents in told["shape"].unique().to_list():
        if any(one is None or one < 0 for one in extents) or math.prod(extents) > MOST_ELEMENTS:
            raise CorruptError(
                chunks.directory, f"a tensor has an impossible shape {tuple(extents)}"
            )


def _check_names(chunks: Chunks, rows: pl.DataFrame, column: str, names: type[Enum]) -> None:
    if column not in rows.columns:
        return
    for found in rows[column].unique().to_list():
        if found not in {one.value for one in names}:
            raise CorruptError(
                chunks.directory, f"a record is malformed ({found!r} is no {column})"
            )


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[at : at + _FILES_AT_ONCE] for at in range(0, len(numbers), _FILES_AT_ONCE))


def _columns(table: pl.Schema, names: Collection[str]) -> pl.Schema:
    return pl.Schema({name: kind for name, kind in table.items() if name in names})
