"""The messages on systems that lack POSIX, such as Windows, or Linux' own calls, such as macOS."""

from __future__ import annotations

import os
import sys

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


def check_linux(what: str) -> None:
    """Check that the system is Linux, for work that needs `/proc` or calls that only Linux has.

    Raises
    ------
    UsageError
        If it is another.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(f"{what} needs Linux; docs/pytorch-versions.md lists what works elsewhere")
