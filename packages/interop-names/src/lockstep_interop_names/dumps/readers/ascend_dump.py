"""Dumps of an Ascend device: a file `{op_type}.{op_name}.{task}(.{stream}).{timestamp}` or, by `mapping.csv`, a number.

A fused operator stands for several of the framework's: what it returns is told as that of the last of them, by the
header or by the graph (`ge_proto_*_Build.txt` beside the dump or above it, or `--format ascend:FILE`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lockstep.errors import CorruptError, LockstepError
from lockstep.files import read_manifest
from lockstep.recordings import LaterTensor, NotSeen, ReadCall, Role, digested
from lockstep.terminal import listed
from lockstep_interop_names.dumps.device_dump import DeviceDump, Origin, Part, dump_in, tensor_of
from lockstep_interop_names.dumps.device_graph import DeviceOperator, operators_in, plain_name
from lockstep_interop_names.dumps.named_sites import Spot, calls_of, spot_of
from lockstep_interop_names.dumps.readers.tensor_folder import what_contradicts, what_is_missing

NAME = re.compile(
    r"(?P<op>[^.]+)\.(?P<module>.+?)\.(?P<task>\d{1,10})(?:\.\d{1,10})?\.(?P<time>\d{16})(?:\.\d+){0,4}"
)
GRAPHS = "ge_proto_*_Build.txt"
_OF_FUSED = 1000
"""Index from which on inputs of fused operators are counted: they are those of none of the framework's."""

Graph = Mapping[str, DeviceOperator]


def recognises(path: Path) -> bool:
    """Whether the first file of a folder that is named like a dump is one."""
    for file, _ in _files(path):
        try:
            return bool(dump_in(file).parts)
        except LockstepError:
            return False
    return False


def _files(path: Path) -> Iterator[tuple[Path, Spot]]:
    """Files that are named like dumps, also by a list of names."""
    if not path.is_dir() or path.is_symlink():
        return
    names = _mapping(path / "mapping.csv")
    for file in sorted(path.iterdir()):
        spot = spot_of(NAME, names.get(file.name, file.name))
        if spot is not None and file.is_file() and not file.is_symlink():
            yield file, replace(spot, module=plain_name(spot.module))


def _mapping(path: Path) -> dict[str, str]:
    """Real names of files whose names are numbers."""
    if not path.is_file() or path.is_symlink():
        return {}
    lines = (
        line.strip().partition(",")
        for line in read_manifest(path).decode(errors="replace").splitlines()
    )
    return {number.strip(): name.strip() for number, _, name in lines if number.strip().isdigit()}


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, and what such a dump lacks."""
    graphs = sorted({*path.glob(GRAPHS), *path.resolve().parent.glob(GRAPHS)})
    if len(graphs) > 1:
        raise CorruptError(
            path,
            f"has {len(graphs)} graphs beside it",
            advice=f"say which: --format ascend:{graphs[0].name}",
        )
    yield from _read(path, operators_in(graphs[0]) if graphs else {})


def read_by(path: Path, graph: str) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, with the graph of a file."""
    yield from _read(path, operators_in(Path(graph)))


def _read(path: Path, graph: Graph) -> Iterator[ReadCall | NotSeen]:
    found: list[tuple[Spot, LaterTensor]] = []
    fused: dict[str, None] = {}
    given = [(file, spot, dump_in(file)) for file, spot in _files(path)]
    others_of = _contradictions(given, graph)
    for file, spot, dump in given:
        if other := others_of.get(file):
            found += [(_named(spot, part), _unread(file, part, other)) for part in dump.parts]
            continue
        op, parts = graph.get(spot.module), dump.parts
        origins = [one.origin or _told(op, one) for one in parts if one.role is Role.OUTPUT]
        others = {plain_name(one.name) for one in origins if one is not None} - {spot.module}
        if op is not None and (
            inside := {plain_name(one) for one in op.originals} - others - {spot.module}
        ):
            fused[f"{listed(sorted(inside))} in {spot.module}"] = None
        for part in parts:
            origin = part.origin or _told(op, part)
            tensor = tensor_of(file, replace(part, origin=origin))
            found.append(
                (_spot(spot, part, origin, others), digested(tensor) if tensor.load else tensor)
            )
    if not found:
        raise CorruptError(
            path, "holds no file of such a dump", advice="give the folder of its files"
        )
    yield from what_is_missing([spot for spot, _ in found], [])
    yield from what_contradicts(
        [f"{file.name} is of {other} by its header" for file, other in others_of.items()]
    )
    if fused:
        yield NotSeen("results inside of fused operators", "; ".join(list(fused)[:5]))
    if not graph:
        yield NotSeen(
            "the device's graph", f"no {GRAPHS} lies there: what was fused is known by files alone"
        )
    yield from calls_of(found)


def _contradictions(given: list[tuple[Path, Spot, DeviceDump]], graph: Graph) -> dict[Path, str]:
    """The operator that a header says, of each file whose name says a different one.

    A fused or split operator returns results of operators with other names by rights. It is a contradiction where
    those are operators of other files which hold different ones in turn, or not those that the graph tells.
    """
    origins = {
        spot.module: {plain_name(one.origin.name) for one in dump.parts if one.origin is not None}
        for _, spot, dump in given
    }
    found: dict[Path, str] = {}
    for file, spot, dump in given:
        said, told = plain_name(dump.operator), origins[spot.module]
        if said and not _is_name_of(said, spot, origins):
            found[file] = said
        elif told and spot.module not in told:
            swapped = {one for one in told if origins.get(one) and one not in origins[one]}
            outputs = graph[spot.module].outputs if spot.module in graph else ()
            known = {plain_name(one.name) for one in outputs if one is not None}
            wrong = swapped | (told - known if known else set())
            if wrong:
                found[file] = min(wrong)
    return found


def _is_name_of(said: str, spot: Spot, files: Collection[str]) -> bool:
    """Whether a header's operator is that of the file's name, where one of them may leave out the path."""
    if said == spot.module:
        return True
    longer = said.endswith(f"_{spot.module}") or spot.module.endswith(f"_{said}")
    return longer and said not in files


def _named(spot: Spot, part: Part) -> Spot:
    return replace(spot, role=part.role, index=part.index)


def _unread(file: Path, part: Part, other: str) -> LaterTensor:
    """A tensor of such a file, which is not judged."""
    tensor = tensor_of(file, part)
    return replace(tensor, load=None, note=f"its file is of {other} by its header")


def _told(op: DeviceOperator | None, part: Part) -> Origin | None:
    outputs = op.outputs if op is not None and part.role is Role.OUTPUT else ()
    return outputs[part.index] if part.index < len(outputs) else None


def _spot(spot: Spot, part: Part, origin: Origin | None, others: set[str]) -> Spot:
    """Where a tensor belongs in the framework's graph."""
    if part.role is Role.OUTPUT and origin is not None:
        return replace(spot, module=plain_name(origin.name), role=part.role, index=origin.index)
    if part.role is Role.INPUT and others:
        name = f"{spot.module}.input.{part.index}"
        return replace(
            spot, module=min(others), role=part.role, index=_OF_FUSED + part.index, name=name
        )
    return _named(spot, part)
