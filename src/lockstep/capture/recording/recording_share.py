"""A share of a training's time that recording its steps may take, measured in the training itself."""

from __future__ import annotations

import time
from collections.abc import Callable


class RecordingShare:
    """Says whether one more step may be recorded.

    What a step took beyond the shortest plain one so far is what recording cost; while its files are still written,
    what comes costs too. The first recorded step is free, as it loads what all others use and tells what one may cost.
    Another is recorded once the share of the time since then, without what was spent, covers it too.

    share: From 0 to 1.
    clock: Seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        self._last_s: float | None = None
        self._free_until_s: float | None = None
        self._plain_s: float | None = None
        self._spent_s = self._recorded_s = self._written_s = 0.0

    def begin(self) -> None:
        """A step that is recorded begins."""
        if self._last_s is None:
            self._last_s = self._clock()

    def step_ended(self, *, recorded: bool, writing: bool) -> None:
        """A step has ended.

        recorded: Whether it was recorded.
        writing: Whether files are still to be written.
        """
        now_s, last_s = self._clock(), self._last_s
        self._last_s = now_s
        if last_s is None:
            return
        taken_s = now_s - last_s
        if not (recorded or writing):
            self._plain_s = taken_s if self._plain_s is None else min(self._plain_s, taken_s)
            return
        beyond_s = max(0.0, taken_s - (self._plain_s or 0.0))
        if recorded:
            self._recorded_s, self._written_s = taken_s, 0.0
        else:
            self._written_s += beyond_s
        if self._free_until_s is None:
            self._free_until_s = now_s
        else:
            self._spent_s += beyond_s

    def covers_one_more(self) -> bool:
        """Whether the next step may be recorded."""
        if self._free_until_s is None:
            return True
        if self._plain_s is None:
            return False
        cost_s = max(0.0, self._recorded_s - self._plain_s) + self._written_s
        bare_s = self._clock() - self._free_until_s - self._spent_s
        return self._spent_s + cost_s <= self._share * bare_s
