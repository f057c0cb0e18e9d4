"""The message on systems without POSIX, such as Windows."""

from __future__ import annotations

import os

from lockstep.core.errors import UsageError


def needs_posix(what: str) -> UsageError:
    """Return the error for work that only POSIX systems do."""
    return UsageError(
        f"{what} needs Linux or macOS; on this system Lockstep shows, compares and reports recordings"
    )


def check_posix(what: str) -> None:
    """Check that the system has processes and signals of POSIX.

    Raises
    ------
    UsageError
        If it has not.
    """
    if not hasattr(os, "fork"):
        raise needs_posix(what)
