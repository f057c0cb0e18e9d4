"""Run a command under the recorder, and report its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.capture.process.environment import PLACES, environment_arming
    from lockstep.following.live_runs import live_runs
    from lockstep.launch.command import Command
    from lockstep.launch.descendants import Descendants, started_with
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
    from lockstep.launch.follower import Follower
    from lockstep.launch.running import is_left_running, launch, unheard
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "PLACES",
    "Command",
    "Descendants",
    "Ended",
    "Event",
    "Follow",
    "Follower",
    "NotArmed",
    "Notice",
    "Started",
    "StepUnreadable",
    "StepWritten",
    "StepsLeftOut",
    "WhenFull",
    "WrittenStep",
    "environment_arming",
    "event_from_line",
    "event_line",
    "is_left_running",
    "launch",
    "live_runs",
    "started_with",
    "unheard",
]
