"""How a running command is followed: the function that looks at its steps, how many may wait, and the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lockstep.following.last_step import LastStep, ask_for_last_step
from lockstep.launch.kept_step import keep_step
from lockstep.store.reader import RankRecording

_FOR_RECORDING = 0.25
"""Part of a budget that recording may take: to run the calls of a step again takes several times as long."""


class WhenFull(Enum):
    """The rule for new steps while the queue of steps to look at is full."""

    LEAVE_OUT = "leave out"
    """The training runs on; steps that come are not recorded, and counted."""
    WAIT = "wait"
    """The training waits at the end of its step, so that every chosen step is looked at."""


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step that was written to its end, or as far as its process came.

    rank: The recording to read it by, until `look` returns.
    name: Of which rank it is: `rank0`.
    number: Which step.
    may_go_on: Where there is a budget: waits until there is time for more, and says False once the command has ended
        before.
    """

    rank: RankRecording
    name: str
    number: int
    may_go_on: Callable[[], bool] | None

    def end_training_after(self, step: int) -> None:
        """Ask all processes to end after a step, with exit code 0; needs `Follow.may_end`.

        Ranks that train together must all be before it still: the most that any can be past `number` is one more than
        `Follow.waiting_steps`, where the training waits.
        """
        ask_for_last_step(self.rank.path.parent, LastStep(step))

    def keep(self, into: Path) -> None:
        """Keep this step: as a recording, or as one more rank of the recording that was begun there by this.

        Raises OutputExistsError if something else is there, or it cannot be written.
        """
        keep_step(self.rank.path, self.name, self.number, into)


@dataclass(frozen=True, slots=True)
class Follow:
    """How steps are followed.

    Each step is recorded apart and goes once it was looked at: nothing is left of the recording but its manifest.

    look: Is given each step, on a thread of its own, one after the other. An error that it raises ends the following,
        and is raised by `launch` when the command has ended; the training runs on.
    waiting_steps: How many steps of a process may lie there, with the one that is looked at.
    when_full: The action while that many wait.
    budget: Share of the training's time that following may cost it, from 0 to 1: a quarter of it is for recording steps
        behind the first, the rest for looking. None for as much as there are steps.
    prepare: Called once before the first look, to start a process for example.
    prepare_s: Seconds that this is taken to cost: with a budget it begins once the share covers them.
    may_end: Whether `look` may ask the training to end.
    """

    look: Callable[[WrittenStep], None]
    waiting_steps: int = 1
    when_full: WhenFull = WhenFull.LEAVE_OUT
    budget: float | None = None
    prepare: Callable[[], None] | None = None
    prepare_s: float = 0.0
    may_end: bool = False

    @property
    def recording_share(self) -> float | None:
        """The share of the training's time that recording may take."""
        return None if self.budget is None else _FOR_RECORDING * self.budget

    @property
    def looking_share(self) -> float | None:
        """The share of the command's time that looking may take; the time of both is contained in it."""
        return (
            None if self.budget is None else (1 - _FOR_RECORDING) * self.budget / (1 + self.budget)
        )
