"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `ops`."""
    return [
        Verb(
            "ops", "List what a training runs, against what a device has.", "Before training", _ops
        )
    ]


def _ops() -> click.Command:
    from lockstep.wings.operators.command import ops

    return ops
