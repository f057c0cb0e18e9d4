"""Rows of one step become calls with their tensor records; a row that makes no sense ends in a `CorruptError`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from lockstep.core.errors import CorruptError
from lockstep.core.records import NO_GRADIENT, Call, Content, Frame, TensorRecord, source_of
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.store.context_texts import conditions_in, layout_in
from lockstep.store.limits import values_of


class CallDecoder:
    """Makes calls of the rows of one step.

    path, rank, step: Of the recording's rank, for messages and records.
    stacks, contents: What the rows point at, by number.
    """

    def __init__(
        self,
        path: Path,
        rank: str,
        step: int,
        stacks: Mapping[int, tuple[Frame, ...]],
        contents: Mapping[int, Content],
    ) -> None:
        self._path, self._rank, self._step = path, rank, step
        self._stacks, self._contents = stacks, contents

    def calls(self, rows: pl.DataFrame, records: pl.DataFrame) -> list[Call]:
        """Calls by number, each with its records in order of time, and its body where it is of a custom function."""
        sites = {row[0]: self._site(*row) for row in _rows_of(rows, _SITE_COLUMNS)}
        found = self._records(sites, self._sources(rows), records)
        calls = [self._call(sites, found, *row) for row in _rows_of(rows, _CALL_COLUMNS)]
        bodies: dict[int, list[Call]] = {}
        for call in calls:
            if call.kind is CallKind.FUNCTION_BODY:
                bodies.setdefault(call.parent, []).append(call)
        return [
            replace(call, body=tuple(bodies[call.id])) if call.id in bodies else call
            for call in calls
            if call.kind is not CallKind.FUNCTION_BODY
        ]

    def _site(self, call_id: int, module: str, op: str, call: int, phase: str) -> Site:
        try:
            return _site(module, op, call, _phase(phase))
        except ValueError as error:
            raise self._malformed(call_id, error) from error

    def _sources(self, rows: pl.DataFrame) -> dict[int, str]:
        """The user's line of each call; calls from one line share its text."""
        lines = {number: source_of(frames) for number, frames in self._stacks.items()}
        calls = _rows_of(rows, ("call_id", "stack"))
        return {call_id: lines.get(stack, "") for call_id, stack in calls}

    def _records(
        self, sites: Mapping[int, Site], sources: Mapping[int, str], rows: pl.DataFrame
    ) -> dict[int, list[TensorRecord]]:
        """Records by call."""
        contents, rank, step = self._contents, self._rank, self._step
        elsewhere: dict[tuple[int, Phase], Site] = {}
        found: dict[int, list[TensorRecord]] = {number: [] for number in sites}
        for (
            call_id,
            phase_name,
            role,
            index,
            name,
            sequence,
            occurrence,
            number,
            argument,
            laid,
            edge,
        ) in _rows_of(rows, _RECORD_COLUMNS):
            content = contents.get(number)
            if content is None:
                raise CorruptError(self._path, f"tensor content {number} is missing")
            try:
                phase, role = _phase(phase_name), _role(role)
                layout = layout_in(laid) if laid else None
                if layout is not None and len(layout.strides) != len(content.shape):
                    raise ValueError(f"{laid!r} is not a layout of {len(content.shape)} axes")
                if edge is not None and edge < NO_GRADIENT:
                    raise ValueError(f"{edge} is no edge of a graph")
            except ValueError as error:
                raise self._malformed(call_id, error) from error
            site = sites[call_id]
            if phase is not site.phase:
                there = elsewhere.get((call_id, phase))
                if there is None:
                    there = _site(site.module, site.op, site.call, phase)
                    elsewhere[call_id, phase] = there
                site = there
            found[call_id].append(
                TensorRecord(
                    rank,
                    step,
                    site,
                    role,
                    index,
                    sys.intern(name),
                    sequence,
                    occurrence,
                    content,
                    sys.intern(argument),
                    sources[call_id],
                    layout,
                    edge,
                )
            )
        return found

    def _call(
        self,
        sites: Mapping[int, Site],
        records: Mapping[int, Sequence[TensorRecord]],
        call_id: int,
        kind: str,
        module_class: str,
        parent: int,
        sequence: int,
        stack: int,
        arguments: str,
        recomputed: bool,
        conditions: str,
        random_state: int,
    ) -> Call:
        try:
            settings = _flat_arguments(arguments) if len(arguments) <= _SHORT else None
            settings = _arguments(arguments) if settings is None else dict(settings)
            return Call(
                id=call_id,
                rank=self._rank,
                step=self._step,
                kind=_kind(kind),
                site=sites[call_id],
                module_class=sys.intern(module_class),
                parent=parent,
                sequence=sequence,
                stack=self._stacks.get(stack, ()),
                arguments=settings,
                recomputed=recomputed,
                records=tuple(one for one in records[call_id] if one.role is not Role.SAMPLE),
                conditions=conditions_in(conditions),
                random_state=self._contents.get(random_state),
                sample=tuple(one for one in records[call_id] if one.role is Role.SAMPLE),
            )
        except (ValueError, TypeError) as error:
            raise self._malformed(call_id, error) from error

    def _malformed(self, call_id: int, error: Exception) -> CorruptError:
        return CorruptError(self._path, f"call {call_id} is malformed ({error})")


def _arguments(text: str) -> dict[str, Any]:
    found = values_of(text)
    if not isinstance(found, dict):
        raise TypeError("its arguments are not a JSON object")
    return found


@lru_cache(maxsize=1 << 12)
def _flat_arguments(text: str) -> dict[str, Any] | None:
    """The same, to be copied by who returns it; None of those that hold lists or further objects."""
    found = _arguments(text)
    return None if any(isinstance(one, (list, dict)) for one in found.values()) else found


_SHORT = 256
"""Characters of arguments that are read once for all calls, steps and ranks that have them."""

_phase, _role, _kind = lru_cache(Phase), lru_cache(Role), lru_cache(CallKind)

_site = lru_cache(maxsize=1 << 16)(Site)
"""Steps repeat their sites, so one object each does for all of them."""


def _rows_of(table: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of some columns, without a query: of a short table, that takes longer than reading it."""
    return zip(*(table.get_column(name).to_list() for name in columns), strict=True)


_SITE_COLUMNS = ("call_id", "module", "op", "call", "phase")
_CALL_COLUMNS = (
    "call_id",
    "kind",
    "module_class",
    "parent",
    "sequence",
    "stack",
    "arguments",
    "recomputed",
    "conditions",
    "random_state",
)
_RECORD_COLUMNS = (
    "call_id",
    "phase",
    "role",
    "index",
    "name",
    "sequence",
    "occurrence",
    "content",
    "argument",
    "layout",
    "edge",
)


_SEPARATOR = re.compile(r"[/\\]")


def frames_in(table: pl.DataFrame, own: Sequence[str]) -> dict[int, tuple[Frame, ...]]:
    """Return call stacks by number, innermost frame first.

    table: Rows as in `lockstep.store.schema.STACKS`.
    own: The user's own files by their whole paths.
    """
    libraries = _libraries(table["file"].unique().to_list(), own)
    stacks: dict[int, list[Frame]] = {}
    for number, file, line, function in table.iter_rows():
        stacks.setdefault(number, []).append(Frame(file, line, function, file in libraries))
    return {number: tuple(frames) for number, frames in stacks.items()}


def _libraries(files: Iterable[str], own: Sequence[str]) -> set[str]:
    """Files of stacks that belong to installed packages, given the user's own ones by their whole paths.

    Stacks name a file from the folder or package on that it was found in. Recordings of earlier builds do not tell
    which files are the user's own: then none counts as a library's.
    """
    ends = {
        tuple(parts[start:])
        for parts in (_SEPARATOR.split(file) for file in own)
        for start in range(len(parts))
    }
    return {
        file
        for file in files
        if own and not file.startswith("<") and tuple(_SEPARATOR.split(file)) not in ends
    }
