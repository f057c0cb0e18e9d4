"""A progress bar on standard error, for work that takes a while; nothing where that is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from lockstep.core.progress import Progress, unheard

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PATIENCE_S = 1.0
"""Seconds of work before a bar appears."""

_PAUSE_S = 0.1
"""Seconds between two updates."""


@contextmanager
def progress_bar(verb: str) -> Iterator[Progress]:
    """Show the progress of work; yields a function to call with title, done and total.

    The bar appears by itself, also over work that tells nothing for a while.

    Parameters
    ----------
    verb
        The work, as in "comparing".
    """
    console = Console(stderr=True)
    if not (_writes_to_a_terminal() and console.is_terminal):
        yield unheard
        return
    # Only a terminal needs it, and it takes as long to load as a small job takes.
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Bar(*columns, TimeElapsedColumn(), console=console, transient=True)
    appears = threading.Timer(_PATIENCE_S, bar.start)
    appears.name, appears.daemon = "lockstep-progress", True
    appears.start()
    try:
        yield _teller(bar, verb)
    finally:
        appears.cancel()
        appears.join()
        if bar.live.is_started:
            bar.stop()


def _writes_to_a_terminal() -> bool:
    """Return whether standard error is a terminal; rich also says so of a pipe where FORCE_COLOR is set."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _teller(bar: Bar, verb: str) -> Progress:
    task = bar.add_task(verb, total=None)
    due = 0.0

    def told(what: str, done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _PAUSE_S
            bar.update(task, description=f"{verb} {what}", completed=done, total=total)

    return told
