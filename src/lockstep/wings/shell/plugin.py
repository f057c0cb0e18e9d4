"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `shell`."""
    return [Verb("shell", "Ask one recording, or two, at a prompt.", "Record and compare", _shell)]


def _shell() -> click.Command:
    from lockstep.wings.shell.command import shell

    return shell
