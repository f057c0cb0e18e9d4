"""Listen to losses alone, until one differs from its expected value; then record a step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from lockstep.capture.ends.losses_after_steps import LaterLosses
from lockstep.capture.settings.setup import rank_and_world_size
from lockstep.following.followed_losses import (
    LossComparison,
    ask_to_record,
    end_line,
    expected_in,
    heard_line,
    heard_path,
    step_to_record,
)
from lockstep.store.permissions import open_private


class LossWatch:
    """Says what the losses of this process are, and which step is to be recorded for them.

    recording: Where it is said, and what the losses may be.
    step_now: Number of the step that is under way.
    """

    def __init__(self, recording: Path, step_now: Callable[[], int]) -> None:
        self._recording, self._step_now = recording, step_now
        self._losses: LaterLosses | None = None
        self._file: IO[str] | None = None
        self._comparison = LossComparison([])
        self._ahead, self._is_over = 1, False

    def listen(self) -> None:
        """The training comes in sight, in this thread."""
        if self._losses is None and not self._is_over:
            self._losses = LaterLosses(self._step_now)
            self._losses.listen()

    def step_ended(self, step: int) -> int | None:
        """Compare what has come; gives the step to be recorded once there is one.

        Losses of other devices than the host are read a step later, which waits for nothing. Where ranks train
        together none can be past the end of the next step before all have ended this one, so that all record the same.

        Raises OSError if what was heard cannot be written.
        """
        if self._is_over or self._losses is None:
            return None
        if self._hear(self._losses, before=step):
            ask_to_record(self._recording, step + self._ahead)
        wanted = step_to_record(self._recording)
        if wanted is not None:
            self.stop()
        return wanted

    def finish(self, trained: int) -> None:
        """The training has ended. Raises OSError if what was heard cannot be written."""
        if self._losses is not None and not self._is_over:
            self._hear(self._losses, before=None)
        if self._file is not None:
            self._file.write(end_line(trained))
            self._file.close()
            self._file = None
        self.stop()

    def stop(self) -> None:
        """Listen no more."""
        self._is_over = True
        if self._losses is not None:
            self._losses.stop()

    def _hear(self, losses: LaterLosses, *, before: int | None) -> bool:
        """Write the losses that have come since; tells whether one is further off than it may be."""
        file, parted = self._file or self._begin(), False
        for step, value, _ in losses.take(before=before):
            file.write(heard_line(step, value))
            parted |= any(pair.floors > 1 for pair in self._comparison.add(step, value))
        file.flush()
        return parted

    def _begin(self) -> IO[str]:
        rank, world_size = rank_and_world_size()
        name = f"rank{rank}"
        self._comparison = LossComparison(expected_in(self._recording, name))
        self._ahead = 2 if world_size > 1 else 1
        self._file = open_private(heard_path(self._recording, name, os.getpid()), "a")
        return self._file
