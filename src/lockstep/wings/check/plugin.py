"""What this wing registers: its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click

_GROUP = "Before training"


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `check`, `diagnose` and `doctor`."""
    return [
        Verb("check", "Say in what two set-ups differ.", _GROUP, _check),
        Verb("diagnose", "Explain the known messages of a log.", _GROUP, _diagnose),
        Verb("doctor", "Look at this machine.", _GROUP, _doctor),
    ]


def _check() -> click.Command:
    from lockstep.wings.check.command import check

    return check


def _diagnose() -> click.Command:
    from lockstep.wings.check.logs.command import diagnose

    return diagnose


def _doctor() -> click.Command:
    from lockstep.wings.check.machine.command import doctor

    return doctor
