"""A directory that somebody writes to right now, so that nobody else does.

It is a lock on the directory itself: no file is left behind, and it ends with the process that holds it, however that
ends. File systems between machines mostly know it on each machine alone, and some do not know it at all.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from lockstep.core.errors import OutputExistsError
from lockstep.core.posix import needs_posix


class Claim:
    """Claims a directory until it is released.

    Parameters
    ----------
    path
        A directory.

    Raises
    ------
    OutputExistsError
        If somebody else has claimed it.
    UsageError
        If the system has no such locks.
    OSError
        If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        try:
            import fcntl  # Windows has none, and can read recordings all the same
        except ImportError as error:
            raise needs_posix("writing a recording") from error
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise is_recorded_into(path) from error
        except OSError:
            return  # a file system without locks
        if not _is_still(path, self._descriptor):
            self.release()
            raise is_recorded_into(path)

    def release(self) -> None:
        """Let others have it; safe to call twice, and in a forked child, where it stays the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()


def is_recorded_into(path: Path) -> OutputExistsError:
    """Return whether a different process is recording there."""
    return OutputExistsError(
        f"{path}: another recording is being made there right now; wait until it has ended, or give another directory"
    )


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether a directory was not moved away between its opening and its locking."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
