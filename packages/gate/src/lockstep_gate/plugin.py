"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `gate`."""
    return [
        Verb(
            "gate",
            "Fail the build if the numbers leave a golden recording.",
            Task.TEST,
            _gate,
            guesses=("ci", "test", "golden", "regression", "snapshot"),
        )
    ]


def _gate() -> click.Command:
    from lockstep_gate.command import gate

    return gate
