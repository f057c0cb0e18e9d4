"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `audit`."""
    return [
        Verb("audit", "Check every operator of one training.", "Look at one operator", _audit),
    ]


def _audit() -> click.Command:
    from lockstep.wings.audit.command import audit

    return audit
