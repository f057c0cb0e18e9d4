"""Dumps of ptdbg_ascend, old and new: `dump.pkl`, which holds lines of JSON, with a folder of `.npy` beside it.

A line is `[name, step, md5, dtype, shape, [max, min, mean, norm]]`; the name is `Functional_linear_0_forward_input.0`,
in later versions with dots throughout. What leaves a backward is of the last function, as in `mindstudio_probe`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError
from lockstep.files import MOST_ELEMENTS, read_manifest, size_of, values_of
from lockstep.recordings import (
    MODULES,
    OF_LAST_FUNCTION,
    CallKind,
    Frame,
    LaterTensor,
    NotSeen,
    Phase,
    ReadCall,
    ReadTensor,
    Role,
)
from lockstep_interop_names.dumps.api_names import class_name, operator_name
from lockstep_interop_names.dumps.places import Place, file_in, is_library, places_in
from lockstep_interop_names.dumps.probe_leaves import digest_of, statistics_in, with_file
from lockstep_interop_names.dumps.timeline import Clock, Draft

_NAME = re.compile(
    r"([A-Za-z]+)[_.](.+)[_.](\d+)[_.](forward|backward)(?:[_.](input|output|stack_info))?(?:\.(.+))?"
)
_ROLES = {
    ("forward", "input"): (Role.INPUT, "args"),
    ("forward", "output"): (Role.OUTPUT, "result"),
    ("backward", "input"): (Role.GRAD_OUTPUT, "result"),
    ("backward", "output"): (Role.GRAD_INPUT, OF_LAST_FUNCTION[:-1]),
}
_FOLDER = re.compile(r"(ptdbg_)?dump_\w.*|.*_v\d+(\.\d+)*")


def recognises(path: Path) -> bool:
    """Whether a path is such a dump, or holds its steps or ranks."""
    return bool(_places(path))


def _places(path: Path) -> list[Place]:
    found = places_in(path, lambda folder: _lines_of(folder) is not None)
    if found or not path.is_dir() or path.is_symlink():
        return found
    inside = [
        one
        for one in path.iterdir()
        if one.is_dir() and not one.is_symlink() and _FOLDER.fullmatch(one.name)
    ]
    return (
        places_in(inside[0], lambda folder: _lines_of(folder) is not None)
        if len(inside) == 1
        else []
    )


def _lines_of(folder: Path) -> Path | None:
    """The file of lines, whatever it is called: `dump.pkl`, `api_stack_dump.pkl`, `myDump.pkl`."""
    for file in sorted(folder.glob("*.pkl")):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                start = opened.readline(1 << 20)
            if start.startswith(b'["') and _NAME.match(
                start[2:].split(b'"')[0].decode(errors="replace")
            ):
                return file
    return None


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, rank by rank and step by step, and what such a dump lacks."""
    yield NotSeen("losses, batches, parameters and optimizers", "ptdbg_ascend dumps none")
    yield NotSeen(MODULES, "ptdbg_ascend tells every operator outside of them")
    rank, clock, whole = -1, Clock(), True
    for place in _places(path):
        if place.rank != rank:
            rank, clock = place.rank, Clock()
        step = _Step(place)
        whole = whole and step.has_tensors
        yield from clock.in_order(list(step.drafts.values()))
        if step.unread:
            some = ", ".join(step.unread[:3])
            yield NotSeen(f"{len(step.unread)} lines", f"their names are not known: {some}")
    if not whole:
        yield NotSeen("tensors' elements", "the dump holds numbers about them alone")


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    rest: list[Any]


class _Step:
    """What one rank left of one step."""

    def __init__(self, place: Place) -> None:
        self._place = place
        file = _lines_of(place.folder)
        assert file is not None
        beside = place.folder / file.stem
        self._file = file
        self._tensors = (
            beside if beside.is_dir() else place.folder / file.stem.removeprefix("api_stack_")
        )
        self.drafts: dict[str, Draft] = {}
        self.unread: list[str] = []
        self.has_tensors = self._tensors.is_dir() and not self._tensors.is_symlink()
        for number, line in enumerate(self._lines()):
            self._add(number, line)

    def _lines(self) -> Iterator[_Line]:
        size_of(self._file)
        for number, text in enumerate(read_manifest(self._file).splitlines(), 1):
            if not text.strip():
                continue
            try:
                values = values_of(text)
            except ValueError as error:
                raise self._damaged(number, f"is not valid JSON, or cut off ({error})") from error
            if not isinstance(values, list) or len(values) < 2 or not isinstance(values[0], str):
                raise self._damaged(number, "is not a record")
            yield _Line(values[0], values[1:])

    def _damaged(self, number: int, what: str) -> CorruptError:
        return CorruptError(self._file, f"line {number} {what}", advice="dump again")

    def _add(self, number: int, line: _Line) -> None:
        found = _NAME.fullmatch(line.name)
        if found is None:
            self.unread.append(line.name)
            return
        kind, api, count, phase, what, below = found.groups()
        draft = self._draft(number, f"{kind}.{api}.{count}", kind, api, phase)
        if what == "stack_info":
            draft.call = replace(draft.call, stack=tuple(_frames(line.rest[0])))
            return
        role, start = _ROLES[phase, what or "output"]
        name = ".".join(part for part in (start, below) if part)
        if len(line.rest) < 5:
            raise self._damaged(number + 1, "lacks a dtype, a shape or numbers")
        tensor = self._tensor(number, line)
        if tensor is None:
            draft.call = replace(
                draft.call, arguments={**draft.call.arguments, name: _plain(line.rest[4])}
            )
            return
        of = Phase.BACKWARD if phase == "backward" else Phase.FORWARD
        draft.tensors.append(((number, 1), ReadTensor(role, name, tensor, phase=of)))

    def _draft(self, number: int, key: str, kind: str, api: str, phase: str) -> Draft:
        if key not in self.drafts:
            of = Phase.BACKWARD if phase == "backward" else Phase.FORWARD
            path, _, name = api.rpartition(".")
            module = kind in ("Module", "Cell")
            op = class_name(name) if module else operator_name(kind, api)
            call = ReadCall(
                self._place.step, path if module else "", op, (), self._place.rank,
                CallKind.MODULE if module else CallKind.OPERATOR, of, module_class=op if module else "",
            )  # fmt: skip
            self.drafts[key] = Draft((number, 0), call)
        return self.drafts[key]

    def _tensor(self, number: int, line: _Line) -> LaterTensor | None:
        """The tensor of a line; None where it tells of a number that is none."""
        _, md5, written, shape, numbers = line.rest[:5]
        if not isinstance(written, str) or not written.startswith(("torch.", "mindspore.")):
            return None
        dtype = written.rpartition(".")[2].lower()
        sound = isinstance(shape, list) and all(
            type(extent) is int and 0 <= extent < MOST_ELEMENTS for extent in shape
        )
        if not sound or not isinstance(numbers, list):
            raise self._damaged(number + 1, "has no shape, or no numbers")
        md5 = md5[0] if isinstance(md5, list) and md5 else md5
        digest = digest_of(md5, dtype, shape) if isinstance(md5, str) and md5 else None
        statistics, note = statistics_in([*numbers, None, None, None, None][:4], shape)
        known = LaterTensor(dtype, tuple(shape), statistics, digest, None, note)
        return (
            with_file(file_in(self._tensors, f"{line.name}.npy"), known)
            if self.has_tensors
            else known
        )


def _plain(numbers: Any) -> Any:
    """A plain argument, whose largest, smallest and mean are itself."""
    value = numbers[0] if isinstance(numbers, list) and numbers else numbers
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _frames(lines: Any) -> Iterator[Frame]:
    for line in lines if isinstance(lines, list) else ():
        if isinstance(line, list) and len(line) >= 3 and str(line[1]).isdigit():
            yield Frame(str(line[0]), int(str(line[1])[:9]), str(line[2]), is_library(str(line[0])))
