"""Errors, each of which the command line says in one sentence, and the exit codes of verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.core.errors import (
        SIGNALLED,
        CorruptError,
        ExitCode,
        LockstepError,
        NotARecordingError,
        OutputExistsError,
        RecordingError,
        UsageError,
        VersionError,
        code_of,
    )
    from lockstep.core.posix import check_linux, check_posix, needs_posix
    from lockstep.core.text import reason_of
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "SIGNALLED",
    "CorruptError",
    "ExitCode",
    "LockstepError",
    "NotARecordingError",
    "OutputExistsError",
    "RecordingError",
    "UsageError",
    "VersionError",
    "check_linux",
    "check_posix",
    "code_of",
    "needs_posix",
    "reason_of",
]
