"""The verbs of the main job, as a plug-in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.hookspecs import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """Record, compare, show."""
    return [
        Verb(
            "record", "Run a training and record it.", Task.START, _loader("record"), 1,
            ("run-training", "train", "capture", "trace", "log", "start", "dump-run"),
        ),
        Verb(
            "compare", "Compare two recordings and name the operator at fault.", Task.START, _loader("compare"), 2,
            ("diff", "cmp", "comp", "versus", "vs"),
        ),
        Verb(
            "show", "Show the contents of a recording.", Task.LOOK, _loader("show"), 1,
            ("view", "list", "ls", "cat", "info", "inspect", "print", "summary", "tree"),
        ),
        Verb(
            "copy", "Copy a recording to object storage, or back.", Task.TRAIN, _loader("copy"), 60,
            ("cp", "upload", "download", "push", "pull", "s3"),
        ),
    ]  # fmt: skip


def _loader(name: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        command: click.Command = getattr(importlib.import_module(f"lockstep.cli.{name}"), name)
        return command

    return load
