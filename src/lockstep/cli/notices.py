"""What a user is told of a command while it runs, and of what came of it: one line each, beside its own output."""

from __future__ import annotations

import sys
from contextlib import suppress

from lockstep.launch.events import Event, NotArmed, Notice


def tell(event: Event) -> None:
    """Print what is for a user to read."""
    if isinstance(event, NotArmed | Notice):
        say(str(event))


def say(sentence: str) -> None:
    """Print a sentence of Lockstep's own.

    Where nobody reads any more, as behind a terminal that was closed, it is gone: what runs meanwhile goes on.
    """
    if sys.stderr is None:  # closed before Python began, which prints to standard output then
        return
    with suppress(OSError, ValueError):
        print(f"lockstep: {sentence}", file=sys.stderr)
