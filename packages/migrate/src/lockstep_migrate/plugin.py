"""Register the verb of this wing, its hook for devices, and its own devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl
from lockstep_migrate import hookspecs
from lockstep_migrate.hookspecs import MigrationTarget

if TYPE_CHECKING:
    import click
    import pluggy


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `migrate`."""
    return [
        Verb(
            "migrate",
            "Rewrite CUDA scripts for another device.",
            Task.PREPARE,
            _migrate,
            4,
            ("port", "rewrite", "transfer"),
        )
    ]


@hookimpl
def lockstep_add_hookspecs(plugins: pluggy.PluginManager) -> None:
    """Devices may come from other plug-ins."""
    plugins.add_hookspecs(hookspecs)


@hookimpl
def lockstep_migration_targets() -> list[MigrationTarget]:
    """The built-in targets."""
    from lockstep_migrate.targets import built_in_targets

    return built_in_targets()


def _migrate() -> click.Command:
    from lockstep_migrate.command import migrate

    return migrate
