"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `gate`."""
    return [
        Verb(
            "gate",
            "Hold a training against a golden recording, in CI.",
            "Record and compare",
            _gate,
        )
    ]


def _gate() -> click.Command:
    from lockstep.wings.gate.command import gate

    return gate
