"""The extension point of `--on`: job systems, such as Slurm and Kubernetes, that run a verb as a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from lockstep.plugin import hookspec

__all__ = ["Executor", "JobPhase", "JobState", "JobWork", "SubmittedJob", "lockstep_executors"]


class JobPhase(Enum):
    """Where a job is on its way."""

    WAITS = "waits"
    RUNS = "runs"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as its system tells it.

    Parameters
    ----------
    phase
        Whether it waits, runs or has ended.
    reason
        Why it waits, or how it ended, in the system's words; "" where it gives none.
    exit_code
        That of the verb once it has ended; None where the job ended without one, as at its time limit.
    """

    phase: JobPhase
    reason: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class JobWork:
    """What a job is to do.

    Parameters
    ----------
    words
        What follows `python -m lockstep`: the verb, its options, and the training's command.
    options
        Those of `--on NAME:OPTION=VALUE,...`.
    folder
        The working folder here.
    files
        An empty folder in `folder` for the files of the job itself; it is removed when the job has ended.
    """

    words: tuple[str, ...]
    options: Mapping[str, str]
    folder: Path
    files: Path


class SubmittedJob(Protocol):
    """A job that its system has taken."""

    @property
    def key(self) -> str:
        """What the system calls it."""

    @property
    def ends_by(self) -> str:
        """The command line with which you end it yourself."""

    def look(self) -> JobState:
        """Return its state; it is asked for about twice a second, so ask a busy system less often."""

    def printed(self) -> tuple[bytes, bytes]:
        """Return what it has written since the last call: to its output, and to its errors."""

    def cancel(self) -> None:
        """End it, so that the verb can close what it writes."""

    def clean(self) -> None:
        """Remove what the system keeps of a job that has ended; called once, at its end."""


class Executor(Protocol):
    """A job system that `--on NAME` takes."""

    @property
    def name(self) -> str:
        """What `--on` takes."""

    @property
    def shares_files(self) -> bool:
        """Whether jobs see the files of this machine at the same paths; if not, every path has to be an address."""

    def submit(self, work: JobWork) -> SubmittedJob:
        """Give the work to the system; raises a `UsageError` for an option that it cannot take."""


@hookspec
def lockstep_executors() -> list[Executor]:  # type: ignore[empty-body]
    """Job systems that `--on NAME` takes beside machines."""
