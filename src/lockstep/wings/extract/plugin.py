"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `extract`."""
    return [
        Verb("extract", "Write one site's tensors to a file.", "Look at one operator", _extract)
    ]


def _extract() -> click.Command:
    from lockstep.wings.extract.command import extract

    return extract
