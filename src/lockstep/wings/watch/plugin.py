"""What this wing registers: its verbs, and the hook that it asks for rules by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl
from lockstep.wings.watch import hookspecs

if TYPE_CHECKING:
    import click
    import pluggy

_GROUP = "Watch a training"


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `watch`, `overflow`, `follow` and `guide`."""
    return [
        Verb("watch", "Hold each step of a running training against rules.", _GROUP, _watch),
        Verb("overflow", "Name the operator that makes the first NaN or inf.", _GROUP, _overflow),
        Verb("follow", "Compare each step with a reference as it ends.", _GROUP, _follow),
        Verb("guide", "Say what to check, in order, when a training is off.", _GROUP, _guide),
    ]


@hookimpl
def lockstep_add_hookspecs(plugins: pluggy.PluginManager) -> None:
    """Rules may come from other plug-ins."""
    plugins.add_hookspecs(hookspecs)


def _watch() -> click.Command:
    from lockstep.wings.watch.command import watch

    return watch


def _overflow() -> click.Command:
    from lockstep.wings.watch.overflow_command import overflow

    return overflow


def _follow() -> click.Command:
    from lockstep.wings.watch.follow_command import follow

    return follow


def _guide() -> click.Command:
    from lockstep.wings.watch.guide_command import guide

    return guide
