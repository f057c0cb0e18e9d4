"""Runs of a quick model on the thread that answers: a hop to another thread and back takes longer than such a run.

What one does to others is bounded. A run is made there only where the last one on inputs of the same shapes took a
moment, and one that takes longer after all is stopped and made on the runner's own thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from lockstep_serve.failures import ModelFailedError
from lockstep_serve.servable import Array, Arrays

INSTANT_S = 0.0001
"""What it takes to queue a request and to make it part of a batch."""

QUICK_S = 0.0002
"""A hop and back, by `make bench-serve`'s perceptron, on a machine at work."""

QUICK_ALONE_S = 0.005
"""Where nobody else waits for the model; a twentieth of the 100 ms within which health is to answer."""

_STOPPED_AFTER_S = 0.04
"""A run that is stopped has held the event loop for half as long again at most, which keeps to those 100 ms."""

_MOST_SHAPES = 256

Shapes = tuple[tuple[int, ...], ...]


class Switch(Protocol):
    """Ends a run from another thread, as `RunOptions` of ONNX Runtime do."""

    terminate: bool


class InPlace:
    """Runs that may be made in place.

    make: Makes a run that a switch ends.
    switch: That switch.

    runs, stopped: How many there were, and how many of them were stopped.
    """

    def __init__(self, make: Callable[[Arrays, Any], dict[str, Array]], switch: Switch) -> None:
        self._make, self._switch = make, switch
        self._seconds: dict[Shapes, float] = {}
        self._stops: Counter[Shapes] = (
            Counter()
        )  # each counts double: what waits for a disk takes no thread's time
        self._began_s: float | None = None
        self._awake, self._ended = threading.Event(), False
        self.runs = self.stopped = 0
        threading.Thread(target=self._watch, name="lockstep-serve-watch", daemon=True).start()

    def within(self, seconds: float, inputs: Arrays) -> bool:
        """Whether the last run on such inputs took no longer."""
        return self._seconds.get(_shapes(inputs), math.inf) <= seconds

    def took(self, inputs: Arrays, seconds: float) -> None:
        """Keep what a run took, wherever it was made: its thread's time, as a wait for a core tells nothing of it."""
        shapes = _shapes(inputs)
        if len(self._seconds) >= _MOST_SHAPES:
            self._seconds.clear()
            self._stops.clear()
        self._seconds[shapes] = seconds * 2 ** self._stops[shapes]

    def run(self, inputs: Arrays) -> dict[str, Array] | None:
        """Make a run; None where it was stopped. Raises ModelFailedError if the model fails."""
        self.runs += 1
        self._switch.terminate = False
        began_s, self._began_s = time.thread_time(), time.perf_counter()
        if not self._awake.is_set():
            self._awake.set()
        try:
            return self._make(inputs, self._switch)
        except ModelFailedError:
            if not self._switch.terminate:
                raise
            self.stopped += 1
            self._stops[_shapes(inputs)] += 1
            return None
        finally:
            self._began_s = None
            self.took(inputs, time.thread_time() - began_s)

    def end(self) -> None:
        """Watch no more."""
        self._ended = True
        self._awake.set()

    def _watch(self) -> None:
        """Stop what takes long. It looks only while runs are made; one that begins as it looks wakes it again."""
        while self._awake.wait() and not self._ended:
            self._awake.clear()
            time.sleep(_STOPPED_AFTER_S / 2)
            began_s = self._began_s
            if began_s is not None:
                self._switch.terminate |= time.perf_counter() - began_s > _STOPPED_AFTER_S
                self._awake.set()


def _shapes(inputs: Arrays) -> Shapes:
    return tuple(one.shape for one in inputs.values())
