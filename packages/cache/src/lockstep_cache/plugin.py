"""Register the verb of this wing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `cache`."""
    return [
        Verb(
            "cache", "Share loaded samples between the trainings of a machine.", Task.FASTER, _cache
        )
    ]


def _cache() -> click.Command:
    from lockstep_cache.command import cache

    return cache
