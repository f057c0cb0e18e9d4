"""Register the verb of this member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `audit`."""
    return [
        Verb(
            "audit",
            "Find wrong operators in one training, without a reference.",
            Task.LOOK,
            _audit,
            5,
            ("selfcheck", "validate"),
        ),
    ]


def _audit() -> click.Command:
    from lockstep_audit.command import audit

    return audit
