"""Writing files so that nobody ever meets half of one, and errors that name the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import aside_of


def inside(root: Path, path: PurePosixPath) -> Path:
    """A path below `root`. Raises UsageError if it would lead out of `root`."""
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"{path}: leads out of {root}; nothing was written")
    return root / path


@contextmanager
def naming(path: Path, advice: str) -> Iterator[None]:
    """Turn errors of the system into one sentence that names the file.

    Raises OutputExistsError if the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        what = error.strerror or error
        raise OutputExistsError(f"{path}: cannot be written ({what}); {advice}") from error


def stage(path: Path, data: bytes, like: Path | None = None, *, executable: bool = False) -> Path:
    """Write content beside `path`, with mode, owner and attributes of `like`; gives the file to move.

    Raises OSError if it cannot be written; nothing is left then.
    """
    aside = aside_of(path)
    try:
        with suppress(FileNotFoundError):
            aside.unlink()
        with aside.open("xb") as file:
            file.write(data)
        if like is not None:
            _take_after(aside, like)
        if executable:
            mode = aside.stat().st_mode & 0o7777
            aside.chmod(mode | (mode & 0o444) >> 2)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    return aside


def replace(path: Path, data: bytes, like: Path | None = None, *, executable: bool = False) -> None:
    """Put content in place of a file, or where there is none, all or nothing.

    Raises OSError if it cannot be written; what was there stays as it was.
    """
    aside = stage(path, data, like, executable=executable)
    try:
        aside.replace(path)
    except OSError:
        aside.unlink()
        raise


def _take_after(path: Path, like: Path) -> None:
    status = like.stat()
    with suppress(PermissionError):
        os.chown(path, status.st_uid, status.st_gid)
    shutil.copystat(like, path)
    # The content is new: compiled files and make go by this time.
    os.utime(path)
