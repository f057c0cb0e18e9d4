"""The error tree: everything Lockstep raises on purpose derives from `LockstepError`.

A difference between two runs is data and never an exception; an exception means that Lockstep itself could not do its
work. Every message says what was wrong, where, and what to do next; the command line prints it as one sentence and
exits with code 2.
"""


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
    """The request is wrong: an option, a pattern or a command."""


class OutputExistsError(LockstepError):
    """The output path exists already, or cannot be written."""


class RecordingError(LockstepError):
    """A recording cannot be read."""


class NotARecordingError(RecordingError):
    """The path is missing, empty, or holds something else than a recording."""


class VersionError(RecordingError):
    """The recording was written by a newer version of Lockstep."""


class CorruptError(RecordingError):
    """A file inside the recording is truncated, damaged or hostile."""


class CaptureError(LockstepError):
    """The recorder cannot start or cannot go on."""
