"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `skill`."""
    return [
        Verb("skill", "Tell a coding agent how to drive Lockstep.", "Record and compare", _skill)
    ]


def _skill() -> click.Command:
    from lockstep.wings.skill.command import skill

    return skill
