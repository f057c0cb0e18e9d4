"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `serve`."""
    summary = "Serve trained models over HTTP and gRPC."
    return [Verb("serve", summary, Task.DEPLOY, _serve, guesses=("server", "deploy"))]


def _serve() -> click.Command:
    from lockstep_serve.command import serve

    return serve
