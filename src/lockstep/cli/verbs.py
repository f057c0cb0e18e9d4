"""The verbs of the main job, as a plug-in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click

MAIN_JOB = "Record and compare"


@hookimpl
def lockstep_commands() -> list[Verb]:
    """Record, compare, show."""
    return [
        Verb("record", "Run a command and record its training.", MAIN_JOB, _loader("record")),
        Verb(
            "compare",
            "Compare two recordings and name the operator at fault.",
            MAIN_JOB,
            _loader("compare"),
        ),
        Verb("show", "Show what is in a recording.", MAIN_JOB, _loader("show")),
    ]


def _loader(name: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        command: click.Command = getattr(importlib.import_module(f"lockstep.cli.{name}"), name)
        return command

    return load
