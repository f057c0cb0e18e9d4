"""Register the verbs of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `profile`, `bisect`, `tune` and `run-tuned`."""
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
        Verb(
            "tune",
            "Find settings that make a training faster and leave its numbers.",
            Task.FASTER,
            _tune,
            6,
            ("optimize", "autotune", "speedup", "faster"),
        ),
        Verb(
            "run-tuned",
            "Run a training with the settings that tune found.",
            Task.FASTER,
            _run_tuned,
            7,
        ),
    ]


def _profile() -> click.Command:
    from lockstep_tune.profile_command import profile

    return profile


def _bisect() -> click.Command:
    from lockstep_tune.bisect_command import bisect

    return bisect


def _tune() -> click.Command:
    from lockstep_tune.tune_command import tune

    return tune


def _run_tuned() -> click.Command:
    from lockstep_tune.run_tuned_command import run_tuned_command

    return run_tuned_command
