"""A log with a line of JSON for each trial, from which an interrupted search goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError, OutputExistsError


class Journal:
    """Lines of JSON in a file; the first one says what is searched.

    file: Where; None to keep none.
    subject: What is searched: the verb's own words for it. A log of anything else is refused.
    verb: Whose log it is, for messages.

    entries: What a search before this one left.

    Raises OutputExistsError if the file is of another search, or cannot be written. Raises CorruptError if it is no
    log.
    """

    def __init__(self, file: Path | None, subject: Sequence[str], verb: str) -> None:
        self._file, self._verb = file, verb
        self.entries: list[dict[str, Any]] = []
        if file is None:
            return
        if file.exists():
            self._read(file, list(subject))
        else:
            self.add({"subject": list(subject)})

    def add(self, values: Mapping[str, Any]) -> None:
        """Write one line."""
        if self._file is None:
            return
        try:
            with self._file.open("a", encoding="utf-8") as opened:
                opened.write(f"{json.dumps(values)}\n")
        except OSError as error:
            raise OutputExistsError(
                f"{self._file}: cannot be written ({error.strerror or error}); give another name"
            ) from error

    def damaged(self, error: Exception) -> CorruptError:
        """Return the error for an entry that is not as it was written."""
        assert self._file is not None
        words = f"no log of lockstep {self._verb}"
        corrupt = CorruptError(self._file, words, advice="give another name")
        corrupt.__cause__ = error
        return corrupt

    def _read(self, file: Path, subject: list[str]) -> None:
        try:
            first, *lines = file.read_text(encoding="utf-8").splitlines() or [""]
            kept = json.loads(first)["subject"]
            # The last line may be cut, where the search was interrupted while it was written.
            self.entries = [json.loads(line) for line in lines if line.endswith("}")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self.damaged(error) from error
        if kept != subject:
            raise OutputExistsError(
                f"{file} is the log of another search ({' '.join(map(str, kept))[:120]}); give another name"
            )
