"""Dumps of MindSpore: `rank_{r}/{net}/{graph}/{iteration}/` with `.npy`, `statistic.csv`, or both.

A file is `{op_type}.{op_name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}.npy`, a line of the table
`Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape` with the numbers that were asked for.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.errors import CorruptError
from lockstep.files import MOST_ELEMENTS, read_manifest
from lockstep.recordings import LaterTensor, NotSeen, ReadCall, Role, digested
from lockstep_interop_names.dumps.device_graph import plain_name
from lockstep_interop_names.dumps.named_sites import Spot, calls_of, spot_of
from lockstep_interop_names.dumps.probe_leaves import npy_in, statistics_in
from lockstep_interop_names.dumps.readers.tensor_folder import what_is_missing

_NAME = re.compile(
    r"(?P<op>[^.]+)\.(?P<module>.+?)\.(?P<task>\d+)\.\d+\.(?P<time>\d{10,20})\.(?P<role>input|output)"
    r"\.(?P<index>\d{1,4})\.[A-Za-z]\w*"
)
_TABLE, _HEAD = "statistic.csv", "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot"
_DEPTH = 5


@dataclass(frozen=True, slots=True)
class _Place:
    folder: Path
    rank: int
    step: int


def recognises(path: Path) -> bool:
    """Whether a folder is such a dump, or holds its ranks or iterations."""
    return any(True for _ in _places(path, _DEPTH))


def _places(path: Path, depth: int, rank: int = 0) -> Iterator[_Place]:
    if path.is_symlink() or not path.is_dir():
        return
    named = re.fullmatch(r"rank_(\d{1,6})", path.name)
    rank = int(named[1]) if named else rank
    if _has_table(path) or any(_NAME.fullmatch(one.stem) for one in path.glob("*.npy")):
        yield _Place(path, rank, int(path.name) if re.fullmatch(r"\d{1,9}", path.name) else 0)
    elif depth:
        for one in sorted(path.iterdir()):
            yield from _places(one, depth - 1, rank)


def _has_table(folder: Path) -> bool:
    file = folder / _TABLE
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(_HEAD)).decode(errors="replace") == _HEAD


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, rank by rank and iteration by iteration, and what such a dump lacks."""
    found: list[tuple[Spot, LaterTensor]] = []
    unread: list[str] = []
    for place in _places(path, _DEPTH):
        whole: set[Spot] = set()
        for file in sorted(place.folder.glob("*.npy")):
            spot = None if file.is_symlink() else spot_of(_NAME, file.stem)
            if spot is None:
                unread.append(file.name)
                continue
            at = replace(spot, module=plain_name(spot.module), rank=place.rank, step=place.step)
            whole.add(replace(at, time=()))
            found.append((at, digested(npy_in(file))))
        if _has_table(place.folder):
            lines = _lines(place)
            found += [(at, tensor) for at, tensor in lines if replace(at, time=()) not in whole]
    if not found:
        raise CorruptError(path, "holds no tensor of MindSpore", advice="dump again")
    yield from what_is_missing([spot for spot, _ in found], unread)
    if any(tensor.load is None for _, tensor in found):
        yield NotSeen("tensors' elements", f"of some the dump holds {_TABLE} alone")
    yield from calls_of(found)


def _lines(place: _Place) -> list[tuple[Spot, LaterTensor]]:
    file = place.folder / _TABLE
    rows = csv.DictReader(read_manifest(file).decode(errors="replace").splitlines())
    found = []
    try:
        for row in rows:
            if None in row.values():
                raise ValueError("fewer values than names")
            found.append((_spot(place, row), _tensor(row)))
    except (ValueError, KeyError, TypeError) as error:
        what = f"line {rows.line_num} is no line of numbers, or cut off ({error})"
        raise CorruptError(file, what, advice="dump again") from error
    return found


def _spot(place: _Place, row: Mapping[str, str]) -> Spot:
    role, time = Role(row["IO"]), (int(row["Timestamp"]), int(row["Task ID"]))
    name = plain_name(row["Op Name"])
    return Spot(name, row["Op Type"], -1, place.step, place.rank, role, int(row["Slot"]), "", time)


def _tensor(row: Mapping[str, str]) -> LaterTensor:
    shape = tuple(int(one) for one in re.findall(r"-?\d+", row["Shape"]))
    if any(not 0 <= one < MOST_ELEMENTS for one in shape):
        raise ValueError(f"the impossible shape {row['Shape']}")
    written = (row.get(f"{key} Value") for key in ("Max", "Min", "Avg", "L2Norm"))
    numbers, note = statistics_in([float(one) if one else None for one in written], shape)
    return LaterTensor(row["Data Type"].lower(), shape, numbers, None, None, note)
