"""Run a command under the recorder, and report its progress."""

from lockstep.launch.events import (
    Ended,
    Event,
    NotArmed,
    Notice,
    Started,
    StepsLeftOut,
    StepUnreadable,
    StepWritten,
    event_from_line,
    event_line,
)
from lockstep.launch.follow import Follow, WhenFull, WrittenStep
from lockstep.launch.running import is_left_running, launch

__all__ = [
    "Ended",
    "Event",
    "Follow",
    "NotArmed",
    "Notice",
    "Started",
    "StepUnreadable",
    "StepWritten",
    "StepsLeftOut",
    "WhenFull",
    "WrittenStep",
    "event_from_line",
    "event_line",
    "is_left_running",
    "launch",
]
