"""Writing files so that nobody ever meets half of one, and errors that name the file."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.replacement import aside_of, replacing


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
    with replacing(path):
        stage(path, data, like)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` as a lock that one process at a time can have. It makes the folder and goes with it when empty.

    The system lets go of it when the process ends, however it ends, so that a killed one is in nobody's way.

    Raises
    ------
    UsageError
        If another run holds it.
    OutputExistsError
        If it cannot be made.
    """
    file = _locked_file(path)
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_at(file, path):
                path.unlink()
        os.close(file)
        with suppress(OSError):
            path.parent.rmdir()


def _locked_file(path: Path) -> int:
    while True:
        with naming(path, "no file was changed"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # the run before this one has just removed the folder
        try:
            _take(file, path)
            if _is_at(file, path):
                os.ftruncate(file, 0)
                os.write(file, str(os.getpid()).encode())
                return file
        except BaseException as error:
            os.close(file)
            if isinstance(error, OSError):
                with naming(path, "no file was changed"):
                    raise
            raise
        os.close(file)  # its holder removed it after it was opened here


def _take(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 20, 0).decode("ascii", "replace")
        raise UsageError(
            f"{path.parent.parent}: another run (process {holder or 'unknown'}) is changing files here;"
            " wait until it has ended, then run again"
        ) from None
    except OSError as error:
        # Some network file systems have no locks; there it is as if nobody else were at work.
        if error.errno not in {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}:
            raise


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is still the one that `path` names."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


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
