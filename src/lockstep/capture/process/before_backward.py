"""Ending every process of a command before its first backward, which `lockstep check -- COMMAND` asks for.

Not by an exception: whoever catches it would train on, or save what is no result of a training.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lockstep.capture.process.environment import STOPPED, count_of, leave_note

_LOOKS_EVERY_S = 0.01
_WAITS_S = 60.0
"""For ranks that never come this far; they hang without Lockstep too."""


def end_process(directory: Path, world_size: int) -> NoReturn:
    """End this process, with what it has printed and without what it would do at exit; it is one of `world_size`."""
    _wait_for_other_ranks(directory, world_size)
    for child in multiprocessing.active_children():
        if child.daemon:  # workers of data loaders, which would outlive it for a while
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(0)


def _wait_for_other_ranks(directory: Path, world_size: int) -> None:
    """One that was gone would end the others in the midst of a collective."""
    if world_size < 2:
        return
    leave_note(directory, STOPPED)
    until_s = time.monotonic() + _WAITS_S
    while count_of(directory, STOPPED) < world_size and time.monotonic() < until_s:
        time.sleep(_LOOKS_EVERY_S)
