"""The exit codes of all verbs; a recorded command's own code is passed on as it is."""

from __future__ import annotations

from enum import IntEnum

SIGNALLED = 128
"""The number that a shell adds to that of the signal that ended a command (POSIX, "2.8.2 Exit Status for Commands")."""


class ExitCode(IntEnum):
    """As of `diff` and `grep`: whether there is something, or nothing can be said."""

    AGREES = 0
    """Nothing differs; or what was asked for is done."""
    DIFFERS = 1
    """Something differs, is beyond what is allowed, or is still to be done."""
    FAILED = 2
    """Nothing can be said: the request was wrong, a file is damaged, nothing could be looked at."""
    INTERRUPTED = SIGNALLED + 2
    """Ctrl-C."""


def code_of(*, differs: bool, looked: bool) -> ExitCode:
    """The code of a verb that looks for something.

    Parameters
    ----------
    differs
        Whether it found something.
    looked
        Whether it could look at everything it was asked to; differences that it found anyway count.

    Examples
    --------
    >>> code_of(differs=False, looked=False)
    <ExitCode.FAILED: 2>
    """
    if differs:
        return ExitCode.DIFFERS
    return ExitCode.AGREES if looked else ExitCode.FAILED
