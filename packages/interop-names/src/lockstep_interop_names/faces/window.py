"""A part of a training that is recorded from one call to another, or to the end of the process; then files."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from lockstep.errors import OutputExistsError, UsageError
from lockstep.recorder import rank_and_world_size, record
from lockstep.recordings import RankRecording
from lockstep_interop_names.faces.told import told

Write = Callable[[Path, RankRecording], None]
"""Writes the files of a tool, given a recording and what this process's rank left in it."""


class Window:
    """One such part.

    path: Where the recording goes; one that is there is replaced. The ranks of a training share it.
    write: Called when it has ended.
    model, level, save, only: As `lockstep.record` takes them.
    """

    def __init__(
        self,
        path: Path,
        write: Write,
        *,
        model: Any = None,
        level: Literal["module", "api"] = "api",
        save: Literal["sketch", "tensors"] = "tensors",
    ) -> None:
        self._recording = record(path, model=model, steps="0:", level=level, save=save, force=True)
        self._write = write
        self._process = os.getpid()

    def begin(self) -> None:
        """Begin to record. Raises LockstepError if the path cannot be written, or a recording is running."""
        self._recording.path.parent.mkdir(parents=True, exist_ok=True)
        atexit.register(self._end_at_exit)  # before the recording's own, so that it runs behind it
        try:
            self._recording.start()
        except BaseException:
            atexit.unregister(self._end_at_exit)
            raise

    def end(self) -> None:
        """End, and have the files written; nothing where this process was forked from the one that records.

        Raises LockstepError if no step began, or the files cannot be written.
        """
        if self._process != os.getpid():
            return
        atexit.unregister(self._end_at_exit)
        self._recording.stop()
        rank = self._recording.path / f"rank{rank_and_world_size()[0]}"
        if not rank.is_dir():
            raise UsageError(
                f"{self._recording.path}: no training step began in it, so nothing was dumped"
            )
        found = RankRecording(rank)
        if why := found.manifest.stopped_because:  # a part of a dump would look like a whole one
            raise OutputExistsError(
                f"{self._recording.path}: nothing is dumped, as recording stopped early: {why}"
            )
        self._write(self._recording.path, found)

    @told
    def _end_at_exit(self) -> None:
        self.end()
