"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `shell`."""
    summary = "Explore one recording, or two, at a prompt."
    return [
        Verb(
            "shell", summary, Task.LOOK, _shell, 2, ("prompt", "repl", "explore", "console", "open")
        )
    ]


def _shell() -> click.Command:
    from lockstep_shell.command import shell

    return shell
