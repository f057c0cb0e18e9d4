"""Register the verbs that are named like other tools' commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `msaccucmp` and `msprobe`."""
    group = Task.COMPATIBILITY
    return [
        Verb("msaccucmp", "Compare and convert dumps as msaccucmp.py does.", group, _msaccucmp),
        Verb("msprobe", "Compare dumps as mindstudio-probe does.", group, _msprobe),
    ]


def _msaccucmp() -> click.Command:
    from lockstep.wings.interop.faces.msaccucmp_command import msaccucmp

    return msaccucmp


def _msprobe() -> click.Command:
    from lockstep.wings.interop.faces.probe_compare import msprobe

    return msprobe
