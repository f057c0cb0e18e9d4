"""The numbers of each watched step as TensorBoard event files, a run a rank."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType

from lockstep.errors import OutputExistsError
from lockstep.terminal import ScalarWriter, check_run, load_tensorboard
from lockstep_watch.watcher import StepWatched, WatchEvent

_NUMBERS = ("loss", "gradient_norm", "loss_scale", "learning_rate")


class Boards:
    """Writes event files as steps come; nothing without a directory.

    directory: Where the runs of the ranks go, None for nowhere.
    force: Whether event files that are there are replaced.

    Raises UsageError if tensorboard is not installed. Raises OutputExistsError if event files are there, or none can
    be.
    """

    def __init__(self, directory: Path | None, *, force: bool) -> None:
        self._directory, self._force = directory, force
        self._writers: dict[str, ScalarWriter] = {}
        if directory is not None:
            load_tensorboard()
            for folder in directory.glob("rank*"):
                check_run(folder, force=force)
            _make(directory)

    def __enter__(self) -> Boards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def told(self, event: WatchEvent) -> None:
        """Write a step's numbers, those that are finite."""
        if self._directory is None or not isinstance(event, StepWatched):
            return
        if event.rank not in self._writers:
            self._writers[event.rank] = ScalarWriter(self._directory / event.rank)
        writer = self._writers[event.rank]
        for name in _NUMBERS:
            value = getattr(event, name)
            if value is not None and math.isfinite(value):
                writer.add(f"watch/{name}", value, step=event.step)
        writer.flush()


def _make(directory: Path) -> None:
    """Make the folder before the training runs: after it, the numbers would be lost."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExistsError(
            f"{directory}: cannot be made ({error.strerror or error}); give another directory"
        ) from error
