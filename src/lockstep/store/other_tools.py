"""Opening what another tool wrote: a plug-in reads its calls, and a recording of them is made aside."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lockstep.core.errors import CorruptError, LockstepError, UsageError
from lockstep.core.manifest import MODULES, NESTING, ORDER, NotSeen, Options
from lockstep.core.text import listed
from lockstep.hookspecs import Reader
from lockstep.plugins import readers
from lockstep.store.directory import RunDirectory
from lockstep.store.written_calls import CallsOfRank, RankOnDisk, closed_manifest

_OF_RANKS = (MODULES, ORDER, NESTING)
"""What alignment asks of each rank."""

LEFT_OUT = "what the other tool left out"
"""What is not seen in such a recording: no more can be said of it than that."""


def recording_of(path: Path, form: str = "") -> Path | None:
    """The directory of a recording of what another tool wrote there; None where no plug-in knows it.

    Parameters
    ----------
    form
        The name of the form that it has, or `NAME:TEXT` where TEXT says how its names are built; "" to look which.

    Raises
    ------
    CorruptError
        If a plug-in that knows it cannot read it.
    UsageError
        If there is no such form.
    """
    if form:
        return _made_by(_told(form), path) if path.exists() else None
    known: list[Reader] = []
    for reader in readers() if path.exists() else ():
        with _said(reader, path):
            if reader.recognises(path):
                known.append(reader)
    if len(known) > 1:
        names = " and of ".join(reader.name for reader in known)
        raise CorruptError(path, f"holds dumps of {names}", advice="give a folder that holds one")
    return _made_by(known[0], path) if known else None


def _told(form: str) -> Reader:
    """The reader that the user names, with the names that he tells."""
    name, marked, names = form.partition(":")
    by_name = {reader.name: reader for reader in readers()}
    reader = by_name.get(name)
    if reader is None:
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


def _made_by(reader: Reader, path: Path) -> Path:
    with _said(reader, path):
        return _written(reader, path)


def _written(reader: Reader, path: Path) -> Path:
    command = [f"(read from {path} by {reader.name})"]
    options = Options(save="tensors")
    directory = RunDirectory.create(
        _aside() / (path.resolve().name or "recording"), command, options, force=False
    )
    ranks: dict[int, tuple[CallsOfRank, RankOnDisk]] = {}
    steps: set[int] = set()
    missing = [NotSeen(LEFT_OUT, f"it was written by another tool, and read by {reader.name}")]
    try:
        for given in reader.read(path):
            if isinstance(given, NotSeen):
                missing.append(given)
                continue
            if given.rank not in ranks:
                folder = directory.path / f"rank{given.rank}"
                ranks[given.rank] = CallsOfRank(given.rank), RankOnDisk(folder)
            calls, disk = ranks[given.rank]
            disk.add(calls.made_of(given))
            steps.add(given.step)
    finally:  # each has a thread that writes
        world_size = max(ranks, default=0) + 1
        for rank, (_, disk) in ranks.items():
            manifest = closed_manifest(rank, world_size, command)
            told = [one for one in missing if one.what in _OF_RANKS]
            disk.finish(replace(manifest, python="", devices=[], not_seen=told))
    if not ranks:
        raise ValueError("it holds no call")
    options.steps = f"{min(steps)}:{max(steps) + 1}"
    directory.manifest.not_seen.extend(missing)
    directory.manifest.git, directory.manifest.cwd = (
        {},
        "",
    )  # those of this process, and not of the training
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
