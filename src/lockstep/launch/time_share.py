"""A share of the time that a command takes, which work beside it may not go beyond."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOOKS_EVERY_S = 0.1


class TimeShare:
    """Counts the time that work takes, against a share of all time since `begin`.

    share: From 0 to 1, None for no limit.
    ended: Is set when the command has ended: then nothing is waited for any more.
    """

    def __init__(self, share: float | None, ended: threading.Event) -> None:
        self._share, self._ended = share, ended
        self._spent_s, self._began_s = 0.0, time.monotonic()
        self._at_work_since_s: float | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._share is not None

    def begin(self) -> None:
        """The command begins now."""
        self._began_s = time.monotonic()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count the time that the block takes."""
        self._at_work_since_s = time.monotonic()
        try:
            yield
        finally:
            self._count()
            self._at_work_since_s = None

    def may_go_on(self, more_s: float = 0.0) -> bool:
        """Return whether work has stayed within its share, and would after some more seconds."""
        if self._share is None:
            return True
        return self._spent_s + more_s <= self._share * (time.monotonic() - self._began_s)

    def wait_for_room(self, more_s: float = 0.0) -> bool:
        """Wait until there is room for some more seconds; False if the command has ended before."""
        while not self.may_go_on(more_s):
            if self._ended.wait(_LOOKS_EVERY_S):
                return False
        return True

    def its_turn(self) -> bool:
        """Wait within work until more of it fits; False once the command has ended before."""
        self._count()
        turn = self.wait_for_room()
        if self._at_work_since_s is not None:
            self._at_work_since_s = time.monotonic()
        return turn

    def _count(self) -> None:
        now_s = time.monotonic()
        if self._at_work_since_s is not None:
            self._spent_s += now_s - self._at_work_since_s
            self._at_work_since_s = now_s
