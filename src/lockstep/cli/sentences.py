"""Sentences of Lockstep's own on standard error; loads nothing else, so that `--help` is quick."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(sentence: str) -> None:
    """Print a sentence of Lockstep's own.

    Where nobody reads any more, as behind a terminal that was closed, it is lost, and the work goes on.
    """
    if sys.stderr is None:  # closed before Python began, which prints to standard output then
        return
    with suppress(OSError, ValueError):
        print(f"lockstep: {sentence}", file=sys.stderr)
