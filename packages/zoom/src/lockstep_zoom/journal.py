"""The journal of a search: a line of JSON for each recording and each answer, from which it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError, OutputExistsError
from lockstep.files import replacing
from lockstep_zoom.bracket import Judged

NAME = "journal.jsonl"


class Journal:
    """What a search has done, on disk after each run.

    folder: Where.
    subject: What is searched: the two recordings, their commands. The journal of anything else is refused.

    Raises OutputExistsError if the folder holds another search or something else, or cannot be written. Raises
    CorruptError if the journal is damaged.
    """

    def __init__(self, folder: Path, subject: Sequence[str]) -> None:
        self._file, self._subject = folder / NAME, list(subject)
        self._recorded: set[str] = set()
        self._judged: dict[tuple[int, ...], Judged] = {}
        try:
            if self._file.exists():
                self._read()
            else:
                self._begin(folder)
        except OSError as error:
            raise OutputExistsError(
                f"{folder}: cannot be written ({error.strerror or error}); give another folder with -o"
            ) from error

    def is_recorded(self, name: str) -> bool:
        """Return whether a recording was made to its end."""
        return name in self._recorded

    def recorded(self, name: str) -> None:
        """A recording was made to its end."""
        self._recorded.add(name)
        self._add({"recorded": name})

    def judgement(self, steps: Sequence[int]) -> Judged | None:
        """Return the answer of a round, None of one that is still to come."""
        return self._judged.get(tuple(steps))

    def judged(self, steps: Sequence[int], answer: Judged) -> None:
        """A round was judged."""
        self._judged[tuple(steps)] = answer
        self._add({"steps": list(steps), "judged": asdict(answer)})

    def _begin(self, folder: Path) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputExistsError(
                f"{folder}: is there already, and no search of lockstep zoom; give another folder with -o"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._add({"subject": self._subject})

    def _add(self, values: Mapping[str, Any]) -> None:
        try:
            with self._file.open("a", encoding="utf-8") as opened:
                opened.write(f"{json.dumps(values)}\n")
        except OSError as error:
            raise OutputExistsError(
                f"{self._file}: cannot be written ({error.strerror or error})"
            ) from error

    def _read(self) -> None:
        text = self._file.read_text("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            subject = first["subject"]
            for line in lines:
                self._take(line)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                self._file, "no journal of lockstep zoom", advice="give another folder with -o"
            ) from error
        if subject != self._subject:
            raise OutputExistsError(
                f"{self._file.parent}: holds the search of other recordings or commands; give another folder with -o"
            )
        if whole != text:  # the line that was being written as the search was killed
            with replacing(self._file) as aside:
                aside.write_text(whole, encoding="utf-8")

    def _take(self, line: Mapping[str, Any]) -> None:
        if "recorded" in line:
            self._recorded.add(line["recorded"])
            return
        values = line["judged"]
        tuples = {name: tuple(values[name]) for name in ("sound", "likely", "untold")}
        self._judged[tuple(line["steps"])] = Judged(
            bad=values["bad"], is_recorded=values["is_recorded"], **tuples
        )
