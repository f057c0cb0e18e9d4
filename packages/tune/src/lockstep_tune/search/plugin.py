"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `search`."""
    return [
        Verb(
            "search",
            "Search the best settings of a training (Optuna).",
            Task.TRAIN,
            _search,
            40,
            ("hpo", "hyperparameters", "optuna", "sweep", "mindoptimizer"),
        )
    ]


def _search() -> click.Command:
    from lockstep_tune.search.command import search

    return search
