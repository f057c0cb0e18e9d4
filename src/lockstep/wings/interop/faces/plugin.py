"""What the faces register: the verb that is called as another tool's command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `msaccucmp`."""
    summary = "Compare and convert dumps as msaccucmp.py does."
    return [Verb("msaccucmp", summary, "Record and compare", _msaccucmp)]


def _msaccucmp() -> click.Command:
    from lockstep.wings.interop.faces.msaccucmp_command import msaccucmp

    return msaccucmp
