"""A training to gate: a command, or a function of this process; either can be recorded more than once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep.errors import UsageError
from lockstep.launch import Event, launch
from lockstep.recordings import Options


class Training(Protocol):
    """Something that trains."""

    def record(self, directory: Path, options: Options) -> str:
        """Train once, recorded into a new directory.

        Returns
        -------
        str
            Why the training did not end well, or nothing of it was recorded; "" where all is well.

        Raises
        ------
        LockstepError
            If it cannot be started.
        """
        ...


@dataclass(frozen=True, slots=True)
class CommandTraining:
    """A command, as `lockstep record` takes it.

    command: What to run.
    hear: Is given the events of running it.
    streams: As `lockstep.launch.launch` takes them.
    """

    command: Sequence[str]
    hear: Callable[[Event], None]
    streams: dict[str, Any]

    def record(self, directory: Path, options: Options) -> str:
        """Run the command to its end, or to that of the last recorded step."""
        ended = launch(
            self.command, directory.absolute(), options, force=True, hear=self.hear, **self.streams
        )
        if ended.why_nothing:
            return f"nothing was recorded: {ended.why_nothing}"
        return f"the command ended with exit code {ended.code}" if ended.code else ""


@dataclass(frozen=True, slots=True)
class CalledTraining:
    """A function that trains; it has to do the same each time that it is called, seeds included."""

    train: Callable[[], object]

    def record(self, directory: Path, options: Options) -> str:
        """Call it once, to its end; what it raises is raised."""
        from lockstep.recorder import record

        as_asked: dict[str, Any] = {
            name: getattr(options, name)
            for name in ("steps", "level", "save", "only", "skip", "seed", "calibrate", "redact")
        }
        with record(directory, force=True, **as_asked):
            self.train()
        return ""


def check_callable(train: object) -> None:
    """Check what a test hands over. Raises UsageError if it cannot be called."""
    if not callable(train):
        raise UsageError(
            f"lockstep_gate takes a function that trains, or a command as a list; not {train!r:.60}"
        )
