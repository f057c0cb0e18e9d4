"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `skill`."""
    return [
        Verb(
            "skill",
            "Print instructions for a coding agent.",
            Task.ADVICE,
            _skill,
            3,
            ("agent", "prompt-file"),
        )
    ]


def _skill() -> click.Command:
    from lockstep.wings.skill.command import skill

    return skill
