"""What this part of the wing registers: its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `quantize`."""
    return [
        Verb(
            "quantize",
            "Quantise a model; say what it costs at each layer.",
            "Export and deploy",
            _quantize,
        )
    ]


def _quantize() -> click.Command:
    from lockstep.wings.deploy.quantize_command import quantize

    return quantize
