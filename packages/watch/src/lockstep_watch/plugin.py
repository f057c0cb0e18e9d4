"""Register the verbs of this member, and its hook for rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl
from lockstep_watch import hookspecs

if TYPE_CHECKING:
    import click
    import pluggy


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `watch`, `overflow` and `guide`."""
    return [
        Verb(
            "watch",
            "Check each step of a running training: NaN, spikes ...",
            Task.START,
            _watch,
            5,
            ("monitor", "tail", "observe"),
        ),
        Verb(
            "overflow",
            "Find the operator that makes the first NaN or inf.",
            Task.TRAIN,
            _overflow,
            2,
            ("nan", "inf", "anomaly"),
        ),
        Verb(
            "guide",
            "List what to check when a loss goes wrong.",
            Task.ADVICE,
            _guide,
            1,
            ("docs", "howto", "why", "troubleshoot"),
        ),
    ]


@hookimpl
def lockstep_add_hookspecs(plugins: pluggy.PluginManager) -> None:
    """Rules may come from other plug-ins."""
    plugins.add_hookspecs(hookspecs)


def _watch() -> click.Command:
    from lockstep_watch.command import watch

    return watch


def _overflow() -> click.Command:
    from lockstep_watch.overflow_command import overflow

    return overflow


def _guide() -> click.Command:
    from lockstep_watch.guide_command import guide

    return guide
