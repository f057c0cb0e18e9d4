"""Where other tools keep steps, ranks and files, looked at without following a link out of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError
from lockstep.files import read_manifest, values_of
from lockstep.terminal import printable

_STEP = re.compile(r"step(\d{1,9})")
_RANK = re.compile(r"rank(\d{1,6})")
_PROCESS = re.compile(r"proc(\d{1,9})")
_LIBRARY = re.compile(r"(site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<")


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one rank in one step."""

    rank: int
    step: int
    folder: Path


def places_in(path: Path, is_one: Callable[[Path], bool]) -> list[Place]:
    """Folders of ranks and steps at a path or below it, in order of rank and step.

    A process that knows no rank (`procPID`) is one: the first, the second of its step.

    is_one: Whether a folder holds what a rank leaves of a step.
    """
    if path.is_file():
        path = path.parent
    if path.is_symlink() or not path.is_dir():
        return []
    step = _STEP.fullmatch(path.resolve().parent.name) or _STEP.fullmatch(path.resolve().name)
    found = list(_below(path, int(step[1]) if step else 0, is_one, 2))
    return sorted(found, key=lambda place: (place.rank, place.step))


def _below(
    path: Path, step: int, is_one: Callable[[Path], bool], depth: int, rank: int | None = None
) -> Iterator[Place]:
    if is_one(path):
        named = _RANK.fullmatch(path.resolve().name)
        yield Place(int(named[1]) if named else rank or 0, step, path)
    if not depth:
        return
    folders = sorted(one for one in path.iterdir() if one.is_dir() and not one.is_symlink())
    processes = sorted(
        (int(found[1]), one) for one in folders if (found := _PROCESS.fullmatch(one.name))
    )
    of_process = {one: number for number, (_, one) in enumerate(processes)}
    for one in folders:
        inside = _STEP.fullmatch(one.name)
        if inside:
            yield from _below(one, int(inside[1]), is_one, depth - 1)
        elif one in of_process or _RANK.fullmatch(one.name):
            yield from _below(one, step, is_one, 0, of_process.get(one))


def json_in(path: Path) -> Any:
    """The values of a JSON file, within the limits of a recording's; NaN and Infinity as they stand.

    Raises CorruptError if it cannot be read or is none.
    """
    data = read_manifest(path)
    try:
        return values_of(data)
    except ValueError as error:
        raise CorruptError(
            path, f"is not valid JSON, or cut off ({error})", advice="dump again"
        ) from error


def file_in(folder: Path, name: str) -> Path:
    """A file of a folder, by a name that a dump gives. Raises CorruptError if the name leads anywhere else."""
    if not name or name in (".", "..") or any(mark in name for mark in ("/", "\\", "\0")):
        raise CorruptError(
            folder,
            f"a tensor is said to be in {printable(name)!r}, which is outside",
            advice="dump again",
        )
    return folder / name


def is_library(file: str) -> bool:
    """Whether a file of Python is none of the user's own, by where it lies."""
    return _LIBRARY.search(file) is not None
