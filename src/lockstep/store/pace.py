"""Decide when recorded rows are written, so that a killed process loses almost nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

REST_S = 0.25
"""The longest rest between two ends of steps that are written, in seconds: short steps would wait for their files."""

_SHARE = 0.2
"""The rest as a share of the time that was recorded so far, where that is shorter."""


class Pace:
    """Decides when the ends of steps are written: a kill may cost a fifth of the recorded time, and a quarter second.

    A chunk for every short step would make the training wait for its files; of a short training all but the last
    steps are written nevertheless. The first step is written at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._due_s = self._began_s

    @property
    def left_s(self) -> float:
        """Seconds until the next end of a step is to be written; at most zero where it is due."""
        return self._due_s - self._clock()

    def rest(self) -> None:
        """Something is written now."""
        now_s = self._clock()
        self._due_s = now_s + min(REST_S, _SHARE * (now_s - self._began_s))
