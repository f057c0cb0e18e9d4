"""Register the verb `follow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `follow`."""
    return [
        Verb(
            "follow",
            "Compare each step with a reference as it ends.",
            Task.TRAIN,
            _follow,
            1,
            ("live", "attach"),
        ),
    ]


def _follow() -> click.Command:
    from lockstep.wings.follow.follow_command import follow

    return follow
