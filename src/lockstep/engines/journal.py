"""Pieces that have arrived, on disk: a comparison that was killed goes on from there when it is run again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import IO, Any

from lockstep.core.known_results import Values
from lockstep.engines.engine_pieces import Job
from lockstep.store.permissions import make_private_directory, open_private

_KEPT_S = 7 * 86400
"""How long the journal of a comparison that nobody runs again is kept."""


class Journal:
    """The journal of one comparison: of the same recordings, compared in the same way by the same version.

    job: Which comparison it is.
    folder: Where journals are; by default in this user's cache (XDG Base Directory Specification 0.8).
    """

    def __init__(self, job: Job, folder: Path | None = None) -> None:
        self._folder = folder or _folder()
        text = json.dumps(asdict(job), sort_keys=True, default=str)
        self.path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.jsonl"
        self._lock = Lock()
        self._file: IO[bytes] | None = None
        self._is_closed = False

    def read(self) -> dict[str, Values]:
        """Return the results of pieces by name; a line that was cut off is left out."""
        found: dict[str, Values] = {}
        with suppress(FileNotFoundError):
            for line in self.path.read_bytes().splitlines():
                with suppress(ValueError, TypeError, KeyError):  # cut off as it was written
                    said: dict[str, Any] = json.loads(line)
                    found[said["piece"]] = said["results"]
        return found

    def add(self, name: str, values: Values) -> None:
        """Write down one piece; none after `close`."""
        line = json.dumps({"piece": name, "results": values}).encode() + b"\n"
        with self._lock:
            if self._is_closed:
                return
            if self._file is None:
                self._file = self._opened()
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def remove(self) -> None:
        """Delete it, as the comparison has come to its end."""
        self.path.unlink(missing_ok=True)

    def _opened(self) -> IO[bytes]:
        make_private_directory(self._folder, exist_ok=True)
        for other in self._folder.glob("*.jsonl"):
            with suppress(OSError):  # a different process may have removed it
                if time.time() - other.stat().st_mtime > _KEPT_S:
                    other.unlink()
        file = open_private(self.path, "ab")
        if file.tell():
            file.write(b"\n")  # ends a line that was cut off
        return file


def any_journal() -> bool:
    """Return whether a comparison of this user has left a journal, or is writing one."""
    return any(_folder().glob("*.jsonl"))


def _folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "lockstep" / "pieces"
