"""Event files for TensorBoard: numbers by name and step, the one place that writes them.

A wing that has numbers of a training gives them to a `ScalarWriter`: `lockstep plot --tensorboard` those of a recording
or of a comparison, `lockstep watch` may those of a training that runs. The files are made by tensorboard's own writer,
the one beneath `torch.utils.tensorboard.SummaryWriter`, so that they are what a training writes; torch is not loaded.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.report.page.escape import visible

PATTERN = "events.out.tfevents.*"
"""Files of a folder that TensorBoard reads together."""


class ScalarWriter:
    """Numbers in the event file of one folder, which is a run to TensorBoard.

    Parameters
    ----------
    folder
        Made where it is not there. What lies in it is read together with what is written.

    Raises
    ------
    UsageError
        If tensorboard is not installed.
    OutputExistsError
        If the folder cannot be made.

    Examples
    --------
    >>> with ScalarWriter(Path("runs/ref")) as writer:      # doctest: +SKIP
    ...     writer.add("loss", 2.5, step=0)
    """

    def __init__(self, folder: Path) -> None:
        writer = _module("summary.writer.event_file_writer").EventFileWriter
        self._event = _module("compat.proto.event_pb2").Event
        self._summary = _module("compat.proto.summary_pb2").Summary
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = writer(str(folder))
        except OSError as error:
            raise OutputExistsError(
                f"{folder}: cannot be written to ({error.strerror or error}); give another directory"
            ) from error

    def __enter__(self) -> ScalarWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, name: str, value: float, *, step: int) -> None:
        """Add one number; a part of its name before a slash is a group of charts."""
        number = self._summary.Value(tag=visible(name), simple_value=value)
        summary = self._summary(value=[number])
        self._file.add_event(self._event(step=step, wall_time=time.time(), summary=summary))

    def flush(self) -> None:
        """Write everything added so far, for TensorBoard to read."""
        self._file.flush()

    def close(self) -> None:
        """Write the rest; nothing is added after it."""
        self._file.close()


def load_tensorboard() -> None:
    """Load tensorboard, which nothing else needs.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    _module("summary.writer.event_file_writer")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"tensorboard.{name}")
    except ImportError as error:
        raise UsageError(
            "event files need tensorboard; pip install 'lockstep-numerics[tensorboard]'"
        ) from error


def check_run(folder: Path, *, force: bool) -> None:
    """Check that a run may be written into a folder; with `force`, take away the event files in it.

    Raises
    ------
    OutputExistsError
        If it holds event files and `force` is not given: TensorBoard would draw both as one run.
    """
    there = list(folder.glob(PATTERN))
    if there and not force:
        raise OutputExistsError(
            f"{folder}: holds event files already; give another directory, or --force to replace them"
        )
    for file in there:
        file.unlink()
