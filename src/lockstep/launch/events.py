"""The events of a running command, one after the other; each can be a line of JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs.

    pid: Its process.
    directory: Where its recording goes.
    """

    pid: int
    directory: str


@dataclass(frozen=True, slots=True)
class StepWritten:
    """A step of a rank was written to its end, and is looked at next."""

    rank: str
    step: int


@dataclass(frozen=True, slots=True)
class StepsLeftOut:
    """The number of chosen steps of a rank, before its next reported one, that were not recorded or not looked at."""

    rank: str
    count: int


@dataclass(frozen=True, slots=True)
class StepUnreadable:
    """The files of a rank cannot be read, for example because its process was killed while it wrote."""

    rank: str
    reason: str


@dataclass(frozen=True, slots=True)
class NotArmed:
    """A process loads torch and is not recorded.

    pid: Its number.
    program: Its Python, by its whole path where that can be told.
    reason: How it was started, so that nothing of it is recorded.
    advice: The way out.
    """

    pid: int
    program: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return (
            f"not armed: {Path(self.program).name} (pid {self.pid}) imports torch and {self.reason};"
            f" nothing of it is recorded. {self.advice}"
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user is to read while the command runs."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Ended:
    """The command has ended; the last event.

    code: Its exit code as a shell has it.
    why_nothing: Why nothing was recorded, or "".
    as_asked: Whether nothing was, because nothing here was to be recorded.
    left_out: Chosen steps that were not recorded, as too many waited to be looked at.
    trained: Steps that the process trained that trained most, where each is recorded apart; else 0.
    unwritten: Why not all that was to be recorded could be written, or "".
    """

    code: int
    why_nothing: str
    as_asked: bool
    left_out: int
    trained: int
    unwritten: str = ""


Event = Started | StepWritten | StepsLeftOut | StepUnreadable | NotArmed | Notice | Ended
"""Whatever `hear` is called with while a command runs."""

_KINDS = {
    "started": Started,
    "step_written": StepWritten,
    "steps_left_out": StepsLeftOut,
    "step_unreadable": StepUnreadable,
    "not_armed": NotArmed,
    "notice": Notice,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def event_line(event: Event) -> str:
    """An event as one line of JSON, without its line break.

    Examples
    --------
    >>> event_line(StepWritten("rank0", 3))
    '{"event": "step_written", "rank": "rank0", "step": 3}'
    """
    return json.dumps({"event": _NAMES[type(event)], **dataclasses.asdict(event)})


def event_from_line(line: str) -> Event:
    """Return the event that `event_line` wrote. Raises ValueError if the line is none of an event."""
    try:
        values = json.loads(line)
        event: Event = _KINDS[values.pop("event")](**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no event: {line[:80]}") from error
    return event
