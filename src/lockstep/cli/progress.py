"""A progress bar on standard error, for work that takes a while; nothing where that is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_PATIENCE_S = 1.0
"""Seconds of work before a bar appears."""

_PAUSE_S = 0.1
"""Seconds between two updates."""


@contextmanager
def progress_bar(verb: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show how far work has come; yields what to call with what, done and total.

    Parameters
    ----------
    verb
        What is done, as in "comparing".
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    task: TaskID | None = None
    due = time.monotonic() + _PATIENCE_S

    def told(what: str, done: int, total: int) -> None:
        nonlocal task, due
        now = time.monotonic()
        if now < due or not console.is_terminal:
            return
        due = now + _PAUSE_S
        if task is None:
            bar.start()
            task = bar.add_task("")
        bar.update(task, description=f"{verb} {what}", completed=done, total=total)

    try:
        yield told
    finally:
        if task is not None:
            bar.stop()
