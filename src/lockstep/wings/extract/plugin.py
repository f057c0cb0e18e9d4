"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `extract`."""
    return [
        Verb(
            "extract",
            "Write the tensors of one site to a file.",
            Task.LOOK,
            _extract,
            6,
            ("dump", "tensors", "get"),
        )
    ]


def _extract() -> click.Command:
    from lockstep.wings.extract.command import extract

    return extract
