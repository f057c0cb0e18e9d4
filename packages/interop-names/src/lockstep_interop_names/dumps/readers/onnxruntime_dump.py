"""Dumps of an ONNX Runtime that was built with DEBUG_NODE_INPUTS_OUTPUTS: `.tensorproto` files, or a database.

A file holds one tensor by its name in the graph, that of the last run; which node made it, and in which order, the
model tells (`.onnx` beside the dump, or `--format onnxruntime:MODEL.onnx`). A database tells both, and every run.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from lockstep.errors import CorruptError
from lockstep.files import size_of
from lockstep.recordings import Bytes, LaterTensor, NotSeen, ReadCall, Role, digested
from lockstep_interop_names.dumps.named_sites import Spot, calls_of
from lockstep_interop_names.dumps.onnx_graph import Node, nodes_in
from lockstep_interop_names.dumps.proto_tensor import ProtoTensor, onnx_tensor
from lockstep_interop_names.dumps.readers.tensor_folder import what_is_missing

_SUFFIX = re.compile(r"(?:_default)?_rank_(\d{1,6})")
_BAD = (ValueError, OSError, sqlite3.Error, OverflowError, TypeError, AttributeError)

Found = tuple[Spot, LaterTensor]


def recognises(path: Path) -> bool:
    """Whether a folder holds such files, or a path is such a database, or holds one."""
    return any(True for _ in _files(path)) or any(map(_is_dump, _databases(path)))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (
            one
            for one in sorted(path.glob("*.tensorproto"))
            if one.is_file() and not one.is_symlink()
        )


def _databases(path: Path) -> Iterator[Path]:
    found = [path] if path.is_file() else sorted(path.glob("*.db")) if path.is_dir() else []
    yield from (
        one for one in found if one.suffix == ".db" and one.is_file() and not one.is_symlink()
    )


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """A database that is read, and in which nothing of its own is called."""
    size_of(file)
    with closing(
        sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as database:
        database.execute("pragma trusted_schema = off")
        yield database


def _is_dump(file: Path) -> bool:
    try:
        with _opened(file) as database:
            names = database.execute(
                "select name from sqlite_master where type = 'table'"
            ).fetchall()
    except (sqlite3.Error, CorruptError):
        return False
    return {("Tensors",), ("Nodes",)} <= set(names)


@contextmanager
def _said(file: Path) -> Iterator[None]:
    """Whatever a damaged file does ends in a sentence."""
    try:
        yield
    except _BAD as error:
        raise CorruptError(
            file, f"is not a dump of ONNX Runtime, or damaged ({error})", advice="dump again"
        ) from error


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, with the graph of a model that lies in the folder, and what such a dump lacks."""
    models = sorted(path.glob("*.onnx")) if path.is_dir() else []
    yield from _read(path, models[0] if len(models) == 1 else None)


def read_by(path: Path, model: str) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, with the graph of a model."""
    yield from _read(path, Path(model))


def _read(path: Path, model: Path | None) -> Iterator[ReadCall | NotSeen]:
    files, databases = list(_files(path)), [one for one in _databases(path) if _is_dump(one)]
    if files and databases:
        raise CorruptError(
            path, "holds a dump's files and a database, of two runs", advice="give a folder of one"
        )
    if not files and not databases:
        raise CorruptError(
            path, "holds neither .tensorproto files nor a database of them", advice="dump again"
        )
    unread: list[str] = []
    if databases:
        found = [one for rank, file in enumerate(databases) for one in _of_database(file, rank)]
    elif model is None:
        found = [
            (Spot(_plain(name), rank=rank), tensor) for name, rank, tensor in map(_of_file, files)
        ]
        yield NotSeen("the graph", "no .onnx lies there, so it is not known which node made what")
    else:
        found, unread = _by_nodes(list(map(_of_file, files)), nodes_in(model))
    yield from what_is_missing([spot for spot, _ in found], unread)
    yield from calls_of(found)


def _plain(name: str) -> str:
    return name.strip("/").replace("/", ".")


def _of_file(file: Path) -> tuple[str, int, LaterTensor]:
    """The tensor of a file, by its name in the graph, and its rank."""
    with _said(file):
        one = _in_file(file)
        plain = re.sub(r"[^A-Za-z0-9]", "_", one.name)
        if not file.stem.startswith(plain):
            raise ValueError(f"it holds the tensor {one.name!r}, which its name is not that of")
        rank = _SUFFIX.fullmatch(file.stem[len(plain) :])
        later = LaterTensor(
            one.dtype, one.shape, load=partial(_bytes_in_file, file), place=str(file)
        )
        return one.name, int(rank[1]) if rank else 0, digested(later)


def _in_file(file: Path) -> ProtoTensor:
    size_of(file)
    return onnx_tensor(memoryview(file.read_bytes()))


def _bytes_in_file(file: Path) -> Bytes:
    with _said(file):
        return _in_file(file).data


def _by_nodes(
    tensors: Sequence[tuple[str, int, LaterTensor]], nodes: Sequence[Node]
) -> tuple[list[Found], list[str]]:
    """Tensors at the nodes that make and take them, and the names of those that no node does."""
    of_rank: dict[int, dict[str, LaterTensor]] = defaultdict(dict)
    for name, rank, tensor in tensors:
        of_rank[rank][name] = tensor
    found: list[Found] = []
    met: set[str] = set()
    for node in nodes:
        for role, names in ((Role.INPUT, node.inputs), (Role.OUTPUT, node.outputs)):
            for index, name in enumerate(names):
                for rank, by_name in of_rank.items():
                    if name in by_name:
                        met.add(name)
                        found.append((replace(node.spot(role, index), rank=rank), by_name[name]))
    return found, sorted({name for name, _, _ in tensors} - met)


def _of_database(file: Path, rank: int) -> Iterator[Found]:
    """The tensors of a database at the nodes that it says they went through, run by run."""
    with _said(file), _opened(file) as database:
        nodes = {
            str(name): Node(str(name), str(op), int(order or 0))
            for order, name, op in database.execute(
                "select ExecutionCounter, Name, OpType from Nodes"
            )
        }
        query = (
            "select rowid, Step, Value, TracedProducer, TracedConsumers from Tensors order by rowid"
        )
        for row, step, value, producer, consumers in database.execute(query):
            one = onnx_tensor(memoryview(value))
            later = LaterTensor(
                one.dtype,
                one.shape,
                load=partial(_bytes_in_row, file, row),
                place=f"{file}:{one.name}",
            )
            tensor = digested(later)
            for role, told in ((Role.OUTPUT, producer), (Role.INPUT, consumers)):
                for name, index in _places(str(told or ""), nodes):
                    spot = nodes[name].spot(role, index)
                    yield replace(spot, step=max(int(step) - 1, 0), rank=rank), tensor


def _places(text: str, nodes: Mapping[str, Node]) -> Iterator[tuple[str, int]]:
    """Names of nodes with numbers of their inputs, one behind the other: `conv:0relu:1`."""
    at = 0
    while at < len(text):
        colon = _end_of_name(text, at, nodes)
        end = colon + 1
        while end < len(text) and text[end].isdigit():
            end += 1
        while end > colon + 2 and end < len(text) and _end_of_name(text, end, nodes) < 0:
            end -= 1  # a name may begin with a digit
        if colon < 0 or end == colon + 1:
            raise ValueError(f"{text[at : at + 80]!r} is no place of a node")
        yield text[at:colon], int(text[colon + 1 : end])
        at = end


def _end_of_name(text: str, at: int, nodes: Mapping[str, Node]) -> int:
    """Where the colon behind a node's name is; -1 where none begins."""
    colon = text.find(":", at)
    while colon >= 0 and text[at:colon] not in nodes:
        colon = text.find(":", colon + 1)
    return colon


def _bytes_in_row(file: Path, row: int) -> Bytes:
    with _said(file), _opened(file) as database:
        (value,) = database.execute("select Value from Tensors where rowid = ?", (row,)).fetchone()
        return onnx_tensor(memoryview(value)).data
