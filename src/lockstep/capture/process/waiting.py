"""Wait for unfinished writes when the training has ended."""

from __future__ import annotations

import sys

from lockstep.store.writer import RankWriter

_PATIENCE_S = 2.0
"""Seconds before a progress bar appears."""

_PAUSE_S = 0.1
"""Seconds between two updates of it."""


def wait_until_written(writer: RankWriter) -> None:
    """Wait until a writer that was told to end has written everything; with a bar on a terminal where it takes long."""
    if writer.wait(_PATIENCE_S):
        return
    if not sys.stderr.isatty():
        writer.wait()
        return
    # Not at the top: a training should not load it for nothing.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("lockstep: writing"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = writer.waiting_chunks
        task = bar.add_task("", total=total)
        while not writer.wait(_PAUSE_S):
            bar.update(task, completed=total - writer.waiting_chunks)
