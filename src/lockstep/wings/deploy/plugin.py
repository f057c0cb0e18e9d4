"""What this wing registers: its verbs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click

_GROUP = "Export and deploy"

_VERBS = (
    ("export", "Export a model, and prove it operator by operator.", "export_command", "export"),
    ("run", "Run an exported model: outputs, latency, memory, time of each node.", "run_command", "run"),
    ("bisect-fusions", "Find the optimisation that changes a model's numbers.", "bisect_command", "bisect_fusions"),
    ("quantize", "Quantise a model; say what it costs at each layer.", "quantize_command", "quantize"),
    ("codegen", "Generate C99 of a model, held against the runtime.", "codegen_command", "codegen"),
)  # fmt: skip
"""Name, help, file and function of each verb."""


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs; a verb's file is loaded when it runs."""
    return [
        Verb(name, words, _GROUP, _loader(file, function)) for name, words, file, function in _VERBS
    ]


def _loader(file: str, function: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        found: click.Command = getattr(
            importlib.import_module(f"lockstep.wings.deploy.{file}"), function
        )
        return found

    return load
