"""How the steps of a running command are followed: who looks at them, how many may wait, and what that may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lockstep.store.reader import RankRecording


class WhenFull(Enum):
    """What happens while as many steps wait to be looked at as may."""

    LEAVE_OUT = "leave out"
    """The training runs on; steps that come are not recorded, and counted."""
    WAIT = "wait"
    """The training waits at the end of its step, so that every chosen step is looked at."""


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step that was written to its end, or as far as its process came.

    Parameters
    ----------
    rank
        What to read it by, until `look` returns.
    name
        Of which rank it is: `rank0`.
    number
        Which step.
    may_go_on
        Where there is a budget: waits until there is time for more, and says False once the command has ended before.
    """

    rank: RankRecording
    name: str
    number: int
    may_go_on: Callable[[], bool] | None


@dataclass(frozen=True, slots=True)
class Follow:
    """How steps are followed.

    Each step is recorded apart and goes once it was looked at: nothing is left of the recording but its manifest.

    Parameters
    ----------
    look
        Is given each step, on a thread of its own, one after the other. What it raises ends the following, and
        is raised by `launch` when the command has ended; the training runs on.
    waiting_steps
        How many steps of a process may lie there, with the one that is looked at.
    when_full
        What happens while so many do.
    budget
        Share of the command's time that looking may take; None for as much as there are steps.
    prepare
        What is to be done once before the first look, as starting a process.
    prepare_s
        Seconds that this is taken to cost: with a budget it begins once the share covers them.
    """

    look: Callable[[WrittenStep], None]
    waiting_steps: int = 1
    when_full: WhenFull = WhenFull.LEAVE_OUT
    budget: float | None = None
    prepare: Callable[[], None] | None = None
    prepare_s: float = 0.0
