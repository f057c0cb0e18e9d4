"""Warn about a command while it still runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lockstep.capture.process.environment import unmatched_notes
from lockstep.core.unmatched import unmatched_by_all
from lockstep.launch.events import Event, Notice
from lockstep.launch.unarmed import UnarmedSearch

_LOOKS_EVERY_S = 0.5

_LOOKS_BEFORE_THE_END = 3
"""A training that is about to end says it itself."""


class Lookout:
    """Looks at a running command every half second, on a thread of its own.

    directory: The recording that the command goes into.
    process: The command's process.
    hear: Is told of each matter once.
    """

    def __init__(self, directory: Path, process: int, hear: Callable[[Event], None]) -> None:
        self._directory, self._hear = directory, hear
        self._search = UnarmedSearch(directory, process)
        self._told: set[str] = set()
        self._seen: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lockstep-lookout", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def finish(self) -> None:
        """The command has ended."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(_LOOKS_EVERY_S):
            for unarmed in self._search.look():
                # Of eight ranks that were started alike, one is told.
                self._tell_once(unarmed.reason, unarmed)
            for pattern, sentence in unmatched_by_all(unmatched_notes(self._directory)):
                self._seen[pattern] += 1
                if self._seen[pattern] > _LOOKS_BEFORE_THE_END:
                    self._tell_once(pattern, Notice(sentence))

    def _tell_once(self, subject: str, event: Event) -> None:
        if subject not in self._told:
            self._told.add(subject)
            self._hear(event)
