"""Tells a signal that reached this process alone from one that its whole process group got."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable

# Python writes the number of each signal to the wakeup descriptor; the answer to a question comes after it.
_WITNESS = """
import os, signal, sys
os.set_blocking(1, False)
signal.set_wakeup_fd(1, warn_on_full_buffer=False)
numbers = [int(one) for one in sys.argv[1:]]
for number in numbers:
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
while os.read(0, 1):
    os.write(1, b"\\xff")
"""
_ANSWER = 0xFF
_SENDING_S = 0.02
"""Within which the kernel has sent a signal to all processes of a group: a loop in one system call, some microseconds
for each process. The rest is no matter of time: a process gets its pending signals before it can read a question."""


class GroupWitness:
    """A small process of this process group that says which signals it got.

    signals: Numbers of the signals that are to be told; 1 to 64.

    Raises OSError if the process cannot be started.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._seen: Counter[int] = Counter()
        self._asking = threading.Lock()
        numbers = list(signals)
        # What comes before the witness is ready waits: the process begins with this thread's mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            # Neither site packages nor PYTHONPATH: nothing of the recorder is to start in it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WITNESS, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def group_got(self, number: int) -> bool:
        """Return whether the signal that this process has just got reached the witness too; False if that has ended."""
        time.sleep(_SENDING_S)
        with self._asking:
            try:
                os.write(self._descriptors[0], b"?")
                self._read_to_answer()
            except OSError:  # somebody ended it
                return False
            got = self._seen[number] > 0
            self._seen[number] -= got
            return got

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    @property
    def _descriptors(self) -> tuple[int, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin.fileno(), self._process.stdout.fileno()

    def _read_to_answer(self) -> None:
        while told := os.read(self._descriptors[1], 1):
            if told[0] == _ANSWER:
                return
            self._seen[told[0]] += 1
