"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `replay`."""
    return [Verb("replay", "Run recorded operators again, alone.", "Look at one operator", _replay)]


def _replay() -> click.Command:
    from lockstep.wings.replay.command import replay

    return replay
