"""Brings what a job writes to this machine, in pieces and from where it was cut off.

A recording says that it is here in part until its last file is: whatever ends this process, a comparison of what is
here cannot agree.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.files import make_private_directory, open_private, replacing, write_private
from lockstep.plugin import Use
from lockstep.recordings import MANIFEST, marked_as_part
from lockstep_remote.jobs import Job, Output
from lockstep_remote.link import RemoteError

_PART_NAME = re.compile(r"\.(?P<name>.+)\.(?P<size>\d+)-(?P<changed>\d+)\.part")
Stamp = tuple[int, int]


class Bringing:
    """Takes the answers of `follow` of one job.

    job: The job.
    places: What stands instead of places there in lines that are printed; none to print them as they come.
    """

    def __init__(self, job: Job, places: Mapping[str, str] | None = None) -> None:
        self._job, self._places = job, places or {}
        self._held: dict[str, bytes] = {}
        self._manifests: dict[int, bytes] = {}
        self._brought: set[tuple[int, str]] = set()
        self._reason = f"it is still on {job.machine} in part; lockstep remote attach {job.key} brings the rest"

    def have(self) -> dict[str, tuple[int, int, int]]:
        """Return size, time of change and bytes of each file that is here, as the agent is told of them."""
        found = {}
        for number, output in enumerate(self._job.outputs):
            for name, path in _files_of(Path(output.here)):
                if name == MANIFEST:  # the one here has a mark in it
                    continue
                about = path.stat()
                found[f"{number}/{name}"] = (about.st_size, about.st_mtime_ns, about.st_size)
            for name, stamp, path in _parts_of(Path(output.here)):
                found[f"{number}/{name}"] = (*stamp, path.stat().st_size)
        return found

    def begin(self, output: Output) -> None:
        """Mark a recording that was begun here as one of which nothing is here yet."""
        path = Path(output.here) / MANIFEST
        self._write_marked(path, path.read_bytes())

    def take(self, answer: Mapping[str, Any], data: bytes) -> None:
        """Take one answer: output is printed, a piece of a file is put where it belongs.

        Raises RemoteError if the machine sends what nobody asked for. Raises OSError if it cannot be written here.
        """
        kind = answer.get("kind")
        if kind in ("output", "errors"):
            self._print(str(kind), data)
            self._job.logs[kind == "errors"] = int(answer["at"])
        elif kind == "file":
            self._take_piece(answer, data)

    def _print(self, kind: str, data: bytes, *, is_last: bool = False) -> None:
        """Print what the command printed: whole lines where places in them are to be replaced."""
        if self._places:
            lines, end, rest = (self._held.pop(kind, b"") + data).rpartition(b"\n")
            self._held[kind] = b"" if is_last else rest
            data = lines + end + (rest if is_last else b"")
            for there, here in self._places.items():
                data = data.replace(there.encode(), here.encode())
        print_bytes(sys.stdout if kind == "output" else sys.stderr, data)

    def _take_piece(self, answer: Mapping[str, Any], data: bytes) -> None:
        try:
            number, name, at = int(answer["number"]), str(answer["name"]), int(answer["at"])
            size, changed = (int(one) for one in answer["stamp"])
            output = self._job.outputs[number]
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise self._is_odd(answer) from error
        parts = Path(name).parts
        if number < 0 or Path(name).is_absolute() or any(part[0] == "." for part in parts):
            raise self._is_odd(answer)
        self._brought.add((number, name))
        if name == MANIFEST:
            self._take_manifest(number, Path(output.here), at, size, data)
            return
        path = Path(output.here, name)
        part = path.with_name(f".{path.name}.{size}-{changed}.part")
        make_private_directory(path.parent, exist_ok=True)
        with open_private(part, "r+b" if at and part.exists() else "wb") as file:
            file.seek(at)
            file.write(data)
            file.truncate()
        if at + len(data) == size:
            os.utime(part, ns=(changed, changed))
            part.replace(path)

    def _take_manifest(self, number: int, here: Path, at: int, size: int, data: bytes) -> None:
        """Keep the manifest of a recording until all is here; what lies on disk meanwhile says so."""
        whole = self._manifests.get(number, b"")[:at] + data
        self._manifests[number] = whole
        if len(whole) == size:
            make_private_directory(here, exist_ok=True)
            self._write_marked(here / MANIFEST, whole)

    def _write_marked(self, path: Path, data: bytes) -> None:
        _write(path, marked_as_part(data, self._reason))

    def _is_odd(self, answer: Mapping[str, Any]) -> RemoteError:
        return RemoteError(
            f"{self._job.machine}: sends a file that nobody asked for: {answer!r:.200}"
        )

    def finish(self, listings: Sequence[Mapping[str, int]]) -> list[str]:
        """Take away what is no file of the job any more, and unmark what is whole; returns what is missing."""
        missing = []
        for kind in list(self._held):
            self._print(kind, b"", is_last=True)
        for number, (output, listing) in enumerate(zip(self._job.outputs, listings, strict=True)):
            here = Path(output.here)
            for _, _, part in _parts_of(here):
                part.unlink()
            for name, path in _files_of(here):
                if name not in listing and (
                    output.use is Use.RECORDS or (number, name) in self._brought
                ):
                    path.unlink()
            _remove_empty_folders(here)
            lacking = [
                name for name, size in listing.items() if not self._is_here(number, name, size)
            ]
            missing += [str(Path(output.here, name)) for name in lacking]
            if not lacking and MANIFEST in listing and number in self._manifests:
                _write(here / MANIFEST, self._manifests[number])
        return missing

    def _is_here(self, number: int, name: str, size: int) -> bool:
        if name == MANIFEST:
            return len(self._manifests.get(number, b"")) == size
        try:
            return Path(self._job.outputs[number].here, name).stat().st_size == size
        except OSError:
            return False

    def is_lost(self, why: str) -> None:
        """Say in what is here that the rest will not come."""
        self._reason = why
        for number, output in enumerate(self._job.outputs):
            path = Path(output.here) / MANIFEST
            if path.exists():
                self._write_marked(path, self._manifests.get(number) or path.read_bytes())


def _write(path: Path, data: bytes) -> None:
    with replacing(path) as aside:
        write_private(aside, data.decode())


def print_bytes(stream: Any, data: bytes) -> None:
    """Print what the command printed; where nobody reads any more, what it writes is brought all the same."""
    if stream is None:
        return
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.flush()
    except AttributeError:  # a stream of text alone, as in a notebook
        stream.write(data.decode(errors="replace"))


def _files_of(here: Path) -> Iterator[tuple[str, Path]]:
    """The files of an output that are here whole, by their names there."""
    if here.is_file():
        yield "", here
        return
    for path in sorted(here.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield str(path.relative_to(here)), path


def _parts_of(here: Path) -> list[tuple[str, Stamp, Path]]:
    """The files of which a part is here: name there, size and time of change, and where the part lies."""
    found = []
    beside = [here.parent.glob(f".{here.name}.*.part"), here.rglob(".*.part")]
    for number, paths in enumerate(beside):
        for path in paths:
            named = _PART_NAME.fullmatch(path.name)
            if named is None or (number == 0 and named["name"] != here.name):
                continue
            name = str(path.with_name(named["name"]).relative_to(here)) if number else ""
            found.append((name, (int(named["size"]), int(named["changed"])), path))
    return found


def _remove_empty_folders(here: Path) -> None:
    """Remove folders below an output that hold nothing."""
    for folder, _, _ in os.walk(here, topdown=False):
        if Path(folder) != here and not any(Path(folder).iterdir()):
            Path(folder).rmdir()
