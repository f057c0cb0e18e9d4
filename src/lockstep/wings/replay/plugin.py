"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `replay`."""
    return [
        Verb(
            "replay",
            "Run the operator at fault again, alone.",
            Task.START,
            _replay,
            4,
            ("rerun", "repro", "reproduce", "prove"),
        )
    ]


def _replay() -> click.Command:
    from lockstep.wings.replay.command import replay

    return replay
