"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `explain`."""
    return [
        Verb(
            "explain",
            "Show which parts of an input a model looks at (Captum).",
            Task.DEPLOY,
            _explain,
            50,
            ("captum", "saliency", "attribution", "interpret"),
        )
    ]


def _explain() -> click.Command:
    from lockstep_deploy.explain.command import explain

    return explain
