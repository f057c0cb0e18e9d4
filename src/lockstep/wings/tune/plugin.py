"""What this wing registers: its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `profile` and `bisect`."""
    return [
        Verb(
            "profile",
            "Show where a training step spends its time, and what to change.",
            Task.FASTER,
            _profile,
            5,
            ("profiler", "slow", "bottleneck", "time"),
        ),
        Verb(
            "bisect",
            "Find the switch that changes a training's numbers.",
            Task.LOOK,
            _bisect,
            30,
            ("blame",),
        ),
    ]


def _profile() -> click.Command:
    from lockstep.wings.tune.profile_command import profile

    return profile


def _bisect() -> click.Command:
    from lockstep.wings.tune.bisect_command import bisect

    return bisect
