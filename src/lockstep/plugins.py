"""The one plug-in manager."""

from __future__ import annotations

from functools import lru_cache

import pluggy

from lockstep import hookspecs


@lru_cache(maxsize=1)
def manager() -> pluggy.PluginManager:
    """The manager with every plug-in loaded whose entry point is in the group `lockstep`."""
    plugins = pluggy.PluginManager(hookspecs.NAME)
    plugins.add_hookspecs(hookspecs)
    plugins.load_setuptools_entrypoints(hookspecs.NAME)
    return plugins


def report_writers() -> dict[str, hookspecs.ReportWriter]:
    """Every report format by name, the built-in ones first."""
    found = manager().hook.lockstep_report_writers()
    return {writer.name: writer for writers in reversed(found) for writer in writers}


def migration_targets() -> dict[str, hookspecs.MigrationTarget]:
    """Every migration target by name, the built-in ones first."""
    found = manager().hook.lockstep_migration_targets()
    return {target.name: target for targets in reversed(found) for target in targets}
