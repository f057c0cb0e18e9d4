"""Register the verb of this member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `ops`."""
    return [
        Verb(
            "ops",
            "List the operators that a device lacks.",
            Task.PREPARE,
            _ops,
            3,
            ("operators", "support"),
        )
    ]


def _ops() -> click.Command:
    from lockstep_operators.command import ops

    return ops
