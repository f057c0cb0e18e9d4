"""What this part of the wing registers: its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click

_GROUP = "Export and deploy"


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `quantize` and `codegen`."""
    return [
        Verb("quantize", "Quantise a model; say what it costs at each layer.", _GROUP, _quantize),
        Verb("codegen", "Generate C99 of a model, held against the runtime.", _GROUP, _codegen),
    ]


def _quantize() -> click.Command:
    from lockstep.wings.deploy.quantize_command import quantize

    return quantize


def _codegen() -> click.Command:
    from lockstep.wings.deploy.codegen_command import codegen

    return codegen
