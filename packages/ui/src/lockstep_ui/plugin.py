"""Register the verb of this member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `ui`."""
    summary = "Browse many recordings in your browser."
    return [Verb("ui", summary, Task.LOOK, _ui, 3, ("dashboard", "browse", "board", "gui"))]


def _ui() -> click.Command:
    from lockstep_ui.command import ui

    return ui
