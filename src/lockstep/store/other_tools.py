"""Open the files of a different tool: a plug-in reads its calls, which are written as a temporary recording."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lockstep.core.errors import CorruptError, LockstepError, NotARecordingError, UsageError
from lockstep.core.manifest import LEFT_OUT, MODULES, NESTING, ORDER, NotSeen, Options
from lockstep.core.members import installing, lacking
from lockstep.core.text import listed
from lockstep.hookspecs import Reader
from lockstep.plugins import absent_members, readers
from lockstep.store.directory import RunDirectory
from lockstep.store.dump_dims import DumpDims
from lockstep.store.urls import url_of
from lockstep.store.written_calls import CallsOfRank, RankOnDisk, WholeRankOnDisk, closed_manifest

_MEMBER = "interop-names"
"""Has the readers of other tools' dumps."""

_OF_RANKS = (MODULES, ORDER, NESTING)
"""What alignment asks of each rank."""


def recording_of(path: Path, form: str = "") -> Path | None:
    """Return the directory of a recording made from a different tool's files; None if no plug-in knows them.

    form: The name of the form that it has, or `NAME:TEXT` where TEXT says how its names are built; "" to look which.

    Raises CorruptError if a plug-in that knows it cannot read it. Raises UsageError if there is no such form.
    """
    reader = _reader_of(path, form)
    if reader is None:
        return None
    return made_by(reader, path, _read_by(reader))


def to_be_read(error: NotARecordingError, path: Path) -> NotARecordingError:
    """Return the error that a path is no recording, with what to install if that may be why nothing reads it."""
    absent = [member for member in absent_members() if member.name == _MEMBER]
    if not absent or not path.exists():
        return error
    advice = f"{error.advice}; if another tool wrote it: {installing(absent)}"
    return NotARecordingError(error.where, error.what, advice=advice)


def made_by(reader: Reader, path: Path, gap: NotSeen) -> Path:
    """The directory of a recording, gone with this process, of the calls that a reader gives of a path.

    gap: Why no more can be said of it than what they tell: of `LEFT_OUT` or `PUT_TOGETHER`.

    Raises CorruptError if it cannot read it.
    """
    place = _aside() / (path.resolve().name or "recording")
    with _said(reader, path):
        directory = _create(reader, path, place, force=False)
        return _written(reader, path, directory, RankOnDisk, gap)


def _read_by(reader: Reader) -> NotSeen:
    return NotSeen(LEFT_OUT, f"it was written by another tool, and read by {reader.name}")


def convert(
    path: Path, place: Path, form: str = "", *, force: bool = False, named: Path | None = None
) -> bool:
    """Write a different tool's files as a recording, tensors included; return whether a plug-in knows them.

    Parameters
    ----------
    place
        The directory of the recording, which is made.
    force
        Replace a recording that is there.
    named
        What the recording calls its source; None for `path`.

    Raises
    ------
    CorruptError
        If a plug-in that knows it cannot read it; nothing is left at `place` then.
    OutputExistsError
        If the place is taken, or the disk does not take it.
    UsageError
        If there is no such form.
    """
    reader = _reader_of(path, form)
    if reader is None:
        return False
    directory = _create(reader, named or path, place, force=force)
    try:
        with _said(reader, path):
            _written(reader, path, directory, WholeRankOnDisk, _read_by(reader))
    except BaseException:
        directory.discard()
        raise
    directory.started()  # what it replaces may go
    return True


def _create(reader: Reader, path: Path, place: Path, *, force: bool) -> RunDirectory:
    command = [f"(read from {url_of(path) or path} by {reader.name})"]
    return RunDirectory.create(place, command, Options(save="tensors"), force=force)


def _reader_of(path: Path, form: str) -> Reader | None:
    """The plug-in that reads what is there: the one that was told, or that knows it."""
    if form:
        return _told(form) if path.exists() else None
    known: list[Reader] = []
    for reader in readers() if path.exists() else ():
        with _said(reader, path):
            if reader.recognises(path):
                known.append(reader)
    if len(known) > 1:
        names = " and of ".join(reader.name for reader in known)
        raise CorruptError(path, f"holds dumps of {names}", advice="give a folder that holds one")
    return known[0] if known else None


def _told(form: str) -> Reader:
    """The reader that the user names, with the names that he tells."""
    name, marked, names = form.partition(":")
    by_name = {reader.name: reader for reader in readers()}
    reader = by_name.get(name)
    if reader is None:
        if any(member.name == _MEMBER for member in absent_members()):
            raise lacking(f"--format {form}", _MEMBER)
        raise UsageError(
            f"--format {form}: there is no form {name}; there are {listed(list(by_name), len(by_name))}"
        )
    if not marked:
        return reader
    read_by = reader.read_by
    if read_by is None:
        raise UsageError(f"--format {form}: {name} has names of its own; give --format {name}")
    return replace(reader, read=lambda path: read_by(path, names))


@contextmanager
def _said(reader: Reader, path: Path) -> Iterator[None]:
    """Whatever somebody else's code does to somebody else's file ends in a sentence."""
    try:
        yield
    except LockstepError:
        raise
    except Exception as error:
        raise CorruptError(
            path,
            f"the reader {reader.name} cannot read it ({type(error).__name__}: {error})",
            advice="give it another file, or tell the reader's maker",
        ) from error


def _written(
    reader: Reader,
    path: Path,
    directory: RunDirectory,
    disk_of: Callable[[Path], RankOnDisk],
    gap: NotSeen,
) -> Path:
    command = directory.manifest.command
    ranks: dict[int, tuple[CallsOfRank, RankOnDisk]] = {}
    steps: set[int] = set()
    dims = DumpDims()
    missing = [gap]
    try:
        for given in reader.read(path):
            if isinstance(given, NotSeen):
                missing.append(given)
                continue
            if given.rank not in ranks:
                folder = directory.path / f"rank{given.rank}"
                ranks[given.rank] = CallsOfRank(given.rank), disk_of(folder)
            calls, disk = ranks[given.rank]
            call = calls.made_of(given)
            disk.add(call)
            dims.note(given, call.site)
            steps.add(given.step)
    finally:  # each has a thread that writes
        world_size = max(ranks, default=0) + 1
        for rank, (_, disk) in ranks.items():
            manifest = closed_manifest(rank, world_size, command)
            told = [one for one in missing if one.what in _OF_RANKS]
            disk.finish(replace(manifest, python="", devices=[], not_seen=told))
    if not ranks:
        raise ValueError("it holds no call")
    directory.manifest.options.steps = f"{min(steps)}:{max(steps) + 1}"
    directory.manifest.not_seen.extend(missing)
    directory.manifest.git, directory.manifest.cwd = (
        {},
        "",
    )  # those of this process, and not of the training
    dims.write(directory.path)
    directory.finish(exit_code=None)
    return directory.path


def _aside() -> Path:
    """A folder that is gone when this process ends: until then records read their tensors from there."""
    folder, process = tempfile.mkdtemp(prefix="lockstep-read-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not when a process ends that was forked off
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)
