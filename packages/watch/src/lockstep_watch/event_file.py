"""The event file: a line of JSON for each step and each hit, written at once."""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.errors import OutputExistsError, UsageError
from lockstep.launch import Event, event_line
from lockstep.terminal import counted
from lockstep_watch.observed import Hit
from lockstep_watch.watcher import Noted, RuleFired, StepWatched, WatchEvent, plain

_MOST_WAITING = 100_000
_KEEPS_NOTHING = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class EventFile:
    """Lines that are appended one by one, each in a single write; after a hit the file is synced.

    path: Where; a file that is there is not replaced.
    warn: Is told once that the file cannot be written; the training goes on, and events wait in memory, a hundred
        thousand of them, until the disk takes them.

    Raises OutputExistsError if the file is there. Raises UsageError if it cannot be made.
    """

    def __init__(self, path: Path, warn: Callable[[str], None], *, force: bool = False) -> None:
        self._path, self._warn = path, warn
        self._waiting: deque[bytes] = deque()
        self._told, self._dropped = False, 0
        how = os.O_TRUNC if force else os.O_EXCL
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | how, 0o666)
        except FileExistsError:
            raise OutputExistsError(f"{path} exists; give another file, or --force") from None
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error

    def add(self, event: WatchEvent | Event) -> None:
        """Write an event, after those that could not be written yet."""
        for line in lines_of(event):
            self._waiting.append(f"{line}\n".encode(errors="backslashreplace"))
        self._write()
        if isinstance(event, RuleFired):
            self._keep()

    def close(self) -> None:
        """Nothing more comes."""
        if self._file < 0:
            return
        self._write()
        self._keep()
        os.close(self._file)
        self._file = -1
        lost = self._dropped + len(self._waiting)
        if lost:
            self._warn(f"{self._path}: {counted(lost, 'event')} could not be written")

    def _write(self) -> None:
        try:
            while self._waiting:  # a disk that is nearly full takes a part
                written = os.write(self._file, self._waiting[0])
                self._waiting[0] = self._waiting[0][written:]
                if not self._waiting[0]:
                    self._waiting.popleft()
        except OSError as error:
            self._tell(f"{error.strerror}; events wait in memory until they can be written")
            while len(self._waiting) > _MOST_WAITING:
                self._dropped += 1
                del self._waiting[1]  # the first may stand in the file in part

    def _keep(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:  # a pipe or a terminal keeps nothing; a disk that fails does
            if error.errno not in _KEEPS_NOTHING:
                self._tell(str(error.strerror))

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._warn(f"{self._path}: {why}")


def lines_of(event: WatchEvent | Event) -> list[str]:
    """An event as lines of JSON: one, but one for each hit of a rule."""
    if isinstance(event, RuleFired):
        return [json.dumps({"event": "hit", **hit_values(hit)}) for hit in event.hits]
    if isinstance(event, Noted):
        return [json.dumps({"event": "note", **hit_values(hit)}) for hit in event.notes]
    if isinstance(event, StepWatched):
        values: dict[str, Any] = {"event": "step", "rank": event.rank, "step": event.step}
        for name in ("loss", "gradient_norm", "loss_scale", "learning_rate"):
            values[name] = plain(getattr(event, name))
        return [json.dumps({**values, "skipped": event.skipped})]
    if isinstance(event, Event):
        return [event_line(event)]
    return [json.dumps({"event": "rule_switched_off", "rule": event.rule, "reason": event.reason})]


def hit_values(hit: Hit) -> dict[str, Any]:
    """A hit as JSON values."""
    return {
        "rule": hit.rule,
        "rank": hit.rank,
        "step": hit.step,
        "subject": hit.subject,
        "value": None if hit.value != hit.value else plain(hit.value),
        "limit": None if hit.limit != hit.limit else plain(hit.limit),
        "words": hit.words,
        "site": None if hit.site is None else str(hit.site),
        "source": hit.source,
        "history": [
            {"step": step, **{name: plain(value) for name, value in asdict(numbers).items()}}
            for step, numbers in hit.history
        ],
    }
