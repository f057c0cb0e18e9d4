"""What a user is to know of a command while it still runs, rather than when it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from lockstep.launch.unarmed import Unarmed, UnarmedSearch

_LOOKS_EVERY_S = 0.5


class Lookout:
    """Looks at a running command every half second, on a thread of its own.

    Parameters
    ----------
    directory
        The recording that the command goes into.
    process
        The command's process.
    tell
        Is given each sentence, once.
    """

    def __init__(self, directory: Path, process: int, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._search = UnarmedSearch(directory, process)
        self._told: set[str] = set()
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
                self._say_once(unarmed)

    def _say_once(self, unarmed: Unarmed) -> None:
        """Of eight ranks that were started alike, one is told."""
        if unarmed.reason not in self._told:
            self._told.add(unarmed.reason)
            self._tell(str(unarmed))
