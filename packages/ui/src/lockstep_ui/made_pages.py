"""Make pages of `lockstep report` on request, and keep them while their recordings stay the same."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep_ui.runs import Run

MOST_KEPT = 32
"""Pages that are kept at a time; the oldest goes."""

_LONGEST_S = 900


class NoPageError(LockstepError):
    """A page could not be made; the text says why, as the verb does."""


class MadePages:
    """Has pages made by the verb, one at a time, in a process of its own: of two that ask for one, one makes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-ui-")
        self._making = threading.Lock()
        self._made: dict[tuple[str, ...], Path] = {}

    def page_of(self, runs: Sequence[Run]) -> bytes:
        """The page of one run, or of two that are compared. Raises NoPageError if it cannot be made."""
        key = tuple(part for run in runs for part in (run.key, run.stamp))
        with self._making:
            if key not in self._made:
                self._made[key] = self._make(runs)
                for old in list(self._made)[:-MOST_KEPT]:
                    self._made.pop(old).unlink(missing_ok=True)
            return self._made[key].read_bytes()

    def _make(self, runs: Sequence[Run]) -> Path:
        page = Path(self._folder.name) / f"{len(self._made)}-{runs[0].key}-{runs[-1].key}.html"
        paths = [str(run.path) for run in runs]
        command = [sys.executable, "-m", "lockstep", "report", *paths, "-o", str(page), "--force"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=_LONGEST_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise NoPageError(
                f"comparing took more than {_LONGEST_S} s; run lockstep report in a terminal"
            ) from error
        if not page.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise NoPageError(said[-1] if said else f"lockstep report ended with {done.returncode}")
        return page

    def close(self) -> None:
        """Let go of all pages."""
        self._folder.cleanup()
