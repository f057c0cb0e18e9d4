"""The error tree and the exit codes: everything Lockstep raises on purpose derives from `LockstepError`.

A difference between two runs is data and never an exception; an exception means that Lockstep itself could not do its
work. Every message says what was wrong, where, and what to do next; the command line prints it as one sentence and
exits with code 2.
"""

from __future__ import annotations

from enum import IntEnum

PUT_BACK = "put it back, or record again"
"""What to do about a file that is gone."""


class LockstepError(Exception):
    """Lockstep could not do its work.

    ```
    LockstepError
    ├── UsageError              the request itself is wrong (option, pattern, command)
    ├── OutputExistsError       the output path is there already, or cannot be written
    ├── RecordingError          a recording cannot be read
    │   ├── NotARecordingError  missing, empty or foreign directory
    │   ├── VersionError        written by a newer Lockstep
    │   └── CorruptError        a file of the recording is damaged or hostile
    └── CaptureError            the recorder cannot go on
    ```
    """


class UsageError(LockstepError):
    """The request is wrong: an option, a pattern or a command.

    Parameters
    ----------
    what
        The problem with it.
    command
        A command to type instead, whole and quoted for a shell: it is printed to its end, however long.
    """

    def __init__(self, what: str = "", *, command: str = "") -> None:
        super().__init__(f"{what}: {command}" if command else what)
        self.what, self.command = what, command


class OutputExistsError(LockstepError):
    """The output path exists already, or cannot be written."""


class RecordingError(LockstepError):
    """A recording cannot be read.

    Parameters
    ----------
    where
        The file or directory.
    what
        The problem with it.
    advice
        The way out; "" where there is none.
    """

    def __init__(self, where: object, what: str, *, advice: str = "") -> None:
        super().__init__(f"{where}: {what}" + (f"; {advice}" if advice else ""))
        self.where, self.what, self.advice = str(where), what, advice


class NotARecordingError(RecordingError):
    """The path is missing, empty, or holds something other than a recording."""


class VersionError(RecordingError):
    """The recording was written by a newer version of Lockstep."""


class CorruptError(RecordingError):
    """A file inside the recording is truncated, damaged or hostile."""

    def __init__(self, where: object, what: str, *, advice: str = "record again") -> None:
        super().__init__(where, what, advice=advice)


class CaptureError(LockstepError):
    """The recorder cannot start or cannot go on."""


# --- exit codes of all verbs; a recorded command's own code is passed on as it is ---

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
