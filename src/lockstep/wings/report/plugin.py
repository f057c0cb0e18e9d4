"""What this wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `report`."""
    return [
        Verb("report", "Write a page to look at, for a browser.", "Record and compare", _report)
    ]


def _report() -> click.Command:
    from lockstep.wings.report.command import report

    return report
