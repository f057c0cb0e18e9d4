"""Register the frameworks that this member records, and its verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import DISTRIBUTION, FRAMEWORKS, Framework, Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_frameworks() -> list[Framework]:
    """TensorFlow 2, with Keras 3, MindSpore, and JAX."""
    return [
        Framework(name, module, f"{__package__}.{module}.arming", f"{DISTRIBUTION}[{module}]")
        for module, name in FRAMEWORKS.items()
    ]


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `map`."""
    words = "Propose which names of two frameworks are one."
    return [Verb("map", words, Task.LOOK, _map, 40, ("mapping", "names"))]


def _map() -> click.Command:
    from lockstep_frameworks.mapping.command import map_

    return map_
