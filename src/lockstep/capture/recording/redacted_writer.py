"""Record with `--redact`: a writer that leaves out names and paths of this machine and person."""

from __future__ import annotations

import getpass
import json
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.capture.source_code.user_code import short_path
from lockstep.core.manifest import RankManifest
from lockstep.core.records import Frame
from lockstep.core.redaction import REDACTED, Redaction
from lockstep.core.text import with_texts
from lockstep.store import schema
from lockstep.store.encoding import Row
from lockstep.store.writer import RankWriter

_ARGUMENTS = list(schema.CALLS).index("arguments")
_SETTINGS = list(schema.MODULES).index("settings")
_NOTE = list(schema.CONTENTS).index("note")
_IN_WORDS = ("platform", "devices", "environment", "numerics", "distributed")
"""What of a manifest may hold a path or a name, and is known when it is made."""


def redaction_of_process(recording: Path) -> Redaction:
    """Return the names and paths to take out of this process's recording, and out of words about it."""
    home = str(Path.home())
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    with suppress(OSError, KeyError):  # a user without a name
        users.add(getpass.getuser())
    host = platform.node()
    return Redaction(
        str(Path.cwd()),
        home,
        tuple({str(Path(root).absolute()) for root in (*sys.path, str(recording)) if root}),
        tuple(sorted({*users, Path(home).name, host, host.partition(".")[0]})),
    )


def redact(manifest: RankManifest, files: list[str], redaction: Redaction) -> None:
    """Take paths, names and the command out of a manifest that was just made; `files` are those of loaded modules."""
    manifest.argv = [REDACTED]
    manifest.sources = sorted({_name_of(short_path(file), redaction) for file in files})
    for name in _IN_WORDS:
        setattr(manifest, name, with_texts(getattr(manifest, name), redaction.text))


class RedactedWriter(RankWriter):
    """Writes rows without paths and names.

    redaction: What is taken out.
    directory, options: As for `RankWriter`.
    """

    def __init__(self, redaction: Redaction, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        self._redaction = redaction
        self._texts: dict[str, str] = {}

    def add_call(self, row: Row) -> None:
        """Add one row of `schema.CALLS`."""
        super().add_call(self._without(row, _ARGUMENTS))

    def add_module(self, row: Row) -> None:
        """Add one row of the module tree."""
        super().add_module(self._without(row, _SETTINGS))

    def add_content(self, row: Row) -> None:
        """Add one row of `schema.CONTENTS`."""
        note = row[_NOTE] and self._redaction.text(row[_NOTE])
        super().add_content((*row[:_NOTE], note, *row[_NOTE + 1 :]))

    def add_stack(self, number: int, frames: tuple[Frame, ...]) -> None:
        """Add one call stack, innermost frame first."""
        named = [
            Frame(_name_of(frame.file, self._redaction), frame.line, frame.function)
            for frame in frames
        ]
        super().add_stack(number, tuple(named))

    def _without(self, row: Row, column: int) -> Row:
        """A row whose column of JSON values is without paths and names; most of them are the same again and again."""
        text = row[column]
        kept = self._texts.get(text)
        if kept is None:
            kept = json.dumps(with_texts(json.loads(text), self._redaction.text))
            self._texts[text] = kept
        return (*row[:column], kept, *row[column + 1 :])


def _name_of(short: str, redaction: Redaction) -> str:
    """A file of code, given as it stands in a call stack: below the working directory, or from its package on."""
    if short.startswith("<"):
        return short
    whole = Path(redaction.working_directory, short)
    if Path(short).is_absolute() or whole.exists():
        return redaction.file(str(whole))
    return redaction.relative(short)
