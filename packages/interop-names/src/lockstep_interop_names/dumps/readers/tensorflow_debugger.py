"""Directories of TensorFlow 2's debugger (`tf.debugging.experimental.enable_dump_debug_info`), mode FULL_TENSOR.

Operators that ran by themselves stand with what went into them, by the numbers of tensors; those in a graph with the
operator and the inputs that the graph tells. A name's `/` is `_`, as in the dumps that it may be compared with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lockstep.errors import CorruptError
from lockstep.recordings import Bytes, LaterTensor, NotSeen, ReadCall, Role, digested
from lockstep_interop_names.dumps.event_files import Event, events_in, fields_at
from lockstep_interop_names.dumps.named_sites import Spot, calls_of
from lockstep_interop_names.dumps.proto_tensor import (
    number_in,
    parts_in,
    tensorflow_tensor,
    text_in,
)
from lockstep_interop_names.dumps.readers.tensor_folder import what_is_missing
from lockstep_interop_names.dumps.wire import Fields, fields_of, numbers_of

_BAD = (ValueError, OSError, KeyError, OverflowError)
_CREATION, _EXECUTION, _TRACE = 7, 9, 10
_FULL_TENSOR = 7
_MODES = {
    0: "none", 1: "NO_TENSOR", 2: "CURT_HEALTH", 3: "CONCISE_HEALTH", 4: "FULL_HEALTH", 5: "SHAPE", 6: "FULL_NUMERICS",
    8: "REDUCE_INF_NAN_THREE_SLOTS",
}  # fmt: skip
_OF_FUNCTION = re.compile(r"(?:__(?:inference|forward|backward)_)?(.*?)(?:_\d+)?")
"""The name of a function's graph, without what counts it."""

Found = tuple[Spot, LaterTensor]


@dataclass(frozen=True, slots=True)
class _Made:
    """An operator of a graph."""

    op: str
    inputs: tuple[str, ...]


@dataclass
class _Read:
    """What is gathered over the events of one directory."""

    made: dict[tuple[str, str], _Made] = field(default_factory=dict)
    modes: Counter[int] = field(default_factory=Counter)
    cut: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    now: int = 0


def recognises(path: Path) -> bool:
    """Whether a folder holds the files of such a dump."""
    return any(_of(one, "execution") or _of(one, "graph_execution_traces") for one in _sets(path))


def _sets(path: Path) -> list[Path]:
    """The `.metadata` file of each host."""
    if not path.is_dir() or path.is_symlink():
        return []
    return [
        one
        for one in sorted(path.glob("tfdbg_events.*.metadata"))
        if one.is_file() and not one.is_symlink()
    ]


def _of(metadata: Path, kind: str) -> Path | None:
    file = metadata.with_suffix(f".{kind}")
    return file if file.is_file() and not file.is_symlink() else None


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, the files of each host as a rank, and what such a dump lacks."""
    found: list[Found] = []
    told = _Read()
    for rank, metadata in enumerate(_sets(path)):
        try:
            found += _of_host(metadata, rank, told)
        except _BAD as error:
            raise CorruptError(
                metadata,
                f"begins no dump of TensorFlow's debugger, or a damaged one ({error})",
                advice="dump again",
            ) from error
    if not found and not told.modes:
        raise CorruptError(path, "holds no execution of any operator", advice="dump again")
    yield from what_is_missing([spot for spot, _ in found], [])
    for mode, count in told.modes.items():
        yield NotSeen(
            f"{count} results' elements",
            f"mode {_MODES.get(mode, mode)} keeps none; dump with FULL_TENSOR",
        )
    for why, count in told.unread.items():
        yield NotSeen(f"{count} results", why)
    for why in told.cut:
        yield NotSeen("the end of the dump", why)
    yield from calls_of(found)


def _of_host(metadata: Path, rank: int, told: _Read) -> Iterator[Found]:
    if file := _of(metadata, "graphs"):
        for event in events_in(file, told.cut):
            for part in parts_in(event.fields, _CREATION):
                made = fields_of(part)
                inputs = tuple(bytes(one).decode() for one in parts_in(made, 6))
                told.made[text_in(made, 4), text_in(made, 2)] = _Made(text_in(made, 1), inputs)
    files = [
        one for kind in ("execution", "graph_execution_traces") if (one := _of(metadata, kind))
    ]
    # Both are written as things happen; of one moment, what a graph computed was before the graph had ended.
    places = [
        (event.seconds, -number, event.file, event.start, event.size_bytes)
        for number, file in enumerate(files)
        for event in events_in(file, told.cut)
    ]
    eager: dict[int, LaterTensor] = {}
    traced: dict[tuple[str, str], LaterTensor] = {}
    for _, _, file, start, size in sorted(places, key=lambda one: one[:2]):
        told.now += 1
        event = Event(file, start, size, fields_at(file, start, size))
        for spot, tensor in (*_executed(event, told, eager), *_traced(event, told, traced)):
            yield (
                Spot(
                    spot.module,
                    spot.op,
                    role=spot.role,
                    index=spot.index,
                    rank=rank,
                    time=(told.now,),
                ),
                tensor,
            )


def _executed(event: Event, told: _Read, eager: dict[int, LaterTensor]) -> Iterator[Found]:
    """What an operator that ran by itself, or a whole function, took and returned."""
    for number, part in enumerate(parts_in(event.fields, _EXECUTION)):
        run = fields_of(part)
        name = _OF_FUNCTION.fullmatch(text_in(run, 1))
        function = name[1] if text_in(run, 3) and name else ""
        op = function or text_in(run, 1)
        for index, one in enumerate(numbers_of(run.get(4, []))):
            if one in eager:
                yield Spot(function, op, role=Role.INPUT, index=index), eager[one]
        if not _is_full(run, 6, told):
            continue
        numbers = list(numbers_of(run.get(5, [])))
        for index, _ in enumerate(parts_in(run, 7)):
            tensor = _tensor(event, (_EXECUTION, number, 7, index), told)
            if tensor is None:
                continue
            if index < len(numbers):
                eager[numbers[index]] = tensor
            yield Spot(function, op, role=Role.OUTPUT, index=index), tensor


def _traced(
    event: Event, told: _Read, traced: dict[tuple[str, str], LaterTensor]
) -> Iterator[Found]:
    """What an operator in a graph returned, and took as far as that was traced."""
    for number, part in enumerate(parts_in(event.fields, _TRACE)):
        trace = fields_of(part)
        graph, name, slot = text_in(trace, 1), text_in(trace, 2), number_in(trace, 3)
        if not _is_full(trace, 4, told):
            continue
        tensor = _tensor(event, (_TRACE, number, 5, 0), told)
        if tensor is None:
            continue
        made = told.made.get((graph, name), _Made("", ()))
        module = re.sub(r"[/.]", "_", name)
        for index, one in enumerate(made.inputs if not slot else ()):
            if (graph, _with_slot(one)) in traced:
                yield (
                    Spot(module, made.op, role=Role.INPUT, index=index),
                    traced[graph, _with_slot(one)],
                )
        traced[graph, f"{name}:{slot}"] = tensor
        yield Spot(module, made.op, role=Role.OUTPUT, index=slot), tensor


def _with_slot(name: str) -> str:
    return name if re.fullmatch(r".*:\d+", name) else f"{name}:0"


def _is_full(fields: Fields, number: int, told: _Read) -> bool:
    mode = number_in(fields, number)
    if mode != _FULL_TENSOR:
        told.modes[mode] += 1
    return mode == _FULL_TENSOR


def _tensor(event: Event, path: tuple[int, int, int, int], told: _Read) -> LaterTensor | None:
    """A tensor of an event, by which message of which field it is; None for one that holds no numbers."""
    part = _at(event.fields, path)
    try:
        one = tensorflow_tensor(part)
    except ValueError as error:
        if "dtype" not in str(error):
            raise
        told.unread[str(error)] += 1
        return None
    load = partial(_bytes_at, event.file, event.start, event.size_bytes, path)
    return digested(
        LaterTensor(one.dtype, one.shape, load=load, place=f"{event.file}:{event.start}")
    )


def _at(
    fields: Mapping[int, list[int | bytes | memoryview]], path: tuple[int, int, int, int]
) -> memoryview:
    outer, number, inner, index = path
    return parts_in(fields_of(parts_in(dict(fields), outer)[number]), inner)[index]


def _bytes_at(file: Path, start: int, size_bytes: int, path: tuple[int, int, int, int]) -> Bytes:
    try:
        return tensorflow_tensor(_at(fields_at(file, start, size_bytes), path)).data
    except (*_BAD, IndexError) as error:
        raise CorruptError(
            file, f"has no such tensor at byte {start} any more ({error})", advice="dump again"
        ) from error
