"""What this wing registers: its verb, and the devices that scripts are written for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import MigrationTarget, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `migrate`."""
    return [
        Verb("migrate", "Rewrite CUDA scripts for another device.", "Before training", _migrate)
    ]


@hookimpl
def lockstep_migration_targets() -> list[MigrationTarget]:
    """The built-in targets."""
    from lockstep.wings.migrate.targets import built_in_targets

    return built_in_targets()


def _migrate() -> click.Command:
    from lockstep.wings.migrate.command import migrate

    return migrate
