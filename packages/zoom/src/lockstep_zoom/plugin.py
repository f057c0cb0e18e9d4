"""Register the verb of this member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `zoom`."""
    return [
        Verb(
            "zoom",
            "Find the first bad step of a long training.",
            Task.LOOK,
            _zoom,
            guesses=("late", "first-step", "bisect-steps"),
        )
    ]


def _zoom() -> click.Command:
    from lockstep_zoom.command import zoom

    return zoom
