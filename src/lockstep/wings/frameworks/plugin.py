"""Register the frameworks that this wing records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.version import DISTRIBUTION
from lockstep.hookspecs import Framework, Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_frameworks() -> list[Framework]:
    """TensorFlow 2, with Keras 3, MindSpore, and JAX."""
    modules = {"TensorFlow": "tensorflow", "MindSpore": "mindspore", "JAX": "jax"}
    return [
        Framework(name, module, f"{__package__}.{module}.arming", f"{DISTRIBUTION}[{module}]")
        for name, module in modules.items()
    ]


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `map`."""
    words = "Propose which names of two frameworks are one."
    return [Verb("map", words, Task.LOOK, _map, 40, ("mapping", "names"))]


def _map() -> click.Command:
    from lockstep.wings.frameworks.mapping.command import map_

    return map_
