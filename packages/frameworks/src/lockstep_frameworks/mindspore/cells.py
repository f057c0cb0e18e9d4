"""Cells of MindSpore: their paths, classes and settings, and what its optimizers keep."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindspore import Parameter, Tensor, nn
from mindspore.experimental.optim.optimizer import Optimizer

from lockstep_frameworks.tensorflow.attributes import plain_settings


def class_name(cell: Any) -> str:
    """Class of a Cell with its package: `mindspore.nn.Dense`, `train.Mine`."""
    kind = type(cell)
    package = str(kind.__module__)
    for public in (
        "mindspore.nn",
        "mindspore.mint.nn",
        "mindspore.mint.optim",
        "mindspore.experimental.optim",
    ):
        if package.startswith(f"{public}."):
            package = public
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"


def paths_of(root: Any, above: str) -> Iterator[tuple[int, str]]:
    """Identity and path of a Cell and of all below it."""
    yield id(root), above
    for name, cell in root.name_cells().items():
        yield from paths_of(cell, f"{above}.{name}".lstrip("."))


_OPTIONS = frozenset(
    """
    learning_rate lr weight_decay loss_scale use_nesterov nesterov momentum dampening beta1 beta2 betas eps epsilon
    decay centered use_amsgrad amsgrad maximize rho
    """.split()  # noqa: SIM905
)
"""Options of optimizers, of which most hide the arguments of their classes."""


def settings_of(cell: Any) -> dict[str, Any]:
    """Arguments of a Cell's class that it keeps as plain values, or as a number in a tensor."""
    found: dict[str, Any] = {}
    names: Iterable[str] = inspect.signature(type(cell).__init__).parameters
    if isinstance(cell, (nn.Optimizer, Optimizer)):
        found = dict(getattr(cell, "param_groups", [{}])[0])
        names = sorted(_OPTIONS)
    for name in names:
        value = getattr(cell, name, found.get(name))
        if isinstance(value, Tensor) and value.size == 1:
            value = value.asnumpy().item()
        found[name] = type(value).__name__ if isinstance(value, nn.Cell) else value
    return plain_settings(found)


def states_of(optimizer: Any, parameters: Iterable[Any]) -> Mapping[str, list[Any]]:
    """What an optimizer keeps for each parameter, by the attribute that holds it."""
    shapes = [one.shape for one in parameters]
    own = {id(one) for one in parameters}
    return {
        name: list(kept)
        for name, kept in vars(optimizer).items()
        if isinstance(kept, (tuple, list))
        and [getattr(one, "shape", None) for one in kept] == shapes
        and all(isinstance(one, Parameter) and id(one) not in own for one in kept)
    }
