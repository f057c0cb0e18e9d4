"""Writing files so that nobody ever meets half of one, and errors that name the file."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from lockstep.core.errors import OutputExistsError, UsageError


def digest(data: bytes) -> str:
    """What tells one content from another."""
    return hashlib.sha256(data).hexdigest()


def inside(root: Path, path: PurePosixPath) -> Path:
    """A path below `root`.

    Raises
    ------
    UsageError
        If it would lead out of `root`.
    """
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"{path}: leads out of {root}; nothing was written")
    return root / path


@contextmanager
def naming(path: Path, advice: str) -> Iterator[None]:
    """Turn errors of the system into one sentence that names the file.

    Raises
    ------
    OutputExistsError
        If the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        what = error.strerror or error
        raise OutputExistsError(f"{path}: cannot be written ({what}); {advice}") from error


def aside_of(path: Path) -> Path:
    """Where a file's new content waits: beside it, so that moving it needs no space; short whatever its name."""
    name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    return path.with_name(f".lockstep-{name}.part")


def stage(path: Path, data: bytes, like: Path | None = None) -> Path:
    """Write content beside `path`, with mode, owner and attributes of `like`; gives the file to move.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left then.
    """
    aside = aside_of(path)
    try:
        with suppress(FileNotFoundError):
            aside.unlink()
        with aside.open("xb") as file:
            file.write(data)
        if like is not None:
            _take_after(aside, like)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    return aside


def replace(path: Path, data: bytes, like: Path | None = None) -> None:
    """Put content in place of a file, or where there is none, all or nothing.

    Raises
    ------
    OSError
        If it cannot be written; what was there stays as it was.
    """
    aside = stage(path, data, like)
    try:
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def make_executable(path: Path) -> None:
    """Let everybody who may read a file run it."""
    mode = path.stat().st_mode & 0o7777
    path.chmod(mode | (mode & 0o444) >> 2)


def _take_after(path: Path, like: Path) -> None:
    status = like.stat()
    with suppress(PermissionError):
        os.chown(path, status.st_uid, status.st_gid)
    shutil.copystat(like, path)
    # The content is new: compiled files and make go by this time.
    os.utime(path)
