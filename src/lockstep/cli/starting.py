"""Ctrl-C while the command line is still loading: one line and the exit code, at once.

Only what has to be there before anything else is loaded.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_INTERRUPTED = 130
"""`lockstep.core.errors.ExitCode.INTERRUPTED`, which takes an enum to load."""


def end_at_ctrl_c() -> None:
    """End this process at Ctrl-C, until `verb_begins`; an import cannot pass KeyboardInterrupt on in every case.

    Where Ctrl-C is ignored or has a handler already, it stays as it is.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def verb_begins() -> None:
    """Raise KeyboardInterrupt at Ctrl-C from here on: the verb may have files and processes to clear away."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"\nlockstep: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)
