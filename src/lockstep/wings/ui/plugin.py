"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `ui`."""
    return [Verb("ui", "Serve pages over many runs to a browser here.", "Record and compare", _ui)]


def _ui() -> click.Command:
    from lockstep.wings.ui.command import ui

    return ui
