"""Register the verbs of this member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `check`, `diagnose` and `doctor`."""
    return [
        Verb(
            "check",
            "Compare the set-ups of two trainings before you compute.",
            Task.PREPARE,
            _check,
            1,
            ("preflight", "lint", "verify", "setup", "repeat", "hang"),
        ),
        Verb(
            "diagnose",
            "Explain the error messages in a log.",
            Task.ADVICE,
            _diagnose,
            2,
            ("logs", "errors"),
        ),
        Verb(
            "doctor",
            "Check this machine and its settings.",
            Task.PREPARE,
            _doctor,
            2,
            ("env", "environment", "system", "collect-env", "devices"),
        ),
    ]


def _check() -> click.Command:
    from lockstep_check.command import check

    return check


def _diagnose() -> click.Command:
    from lockstep_check.logs.command import diagnose

    return diagnose


def _doctor() -> click.Command:
    from lockstep_check.machine.command import doctor

    return doctor
