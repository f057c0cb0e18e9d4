"""What an optimizer holds: its groups of parameters, their options and names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from lockstep.capture.calls.leaves import plain_setting
from lockstep.capture.modules.module_paths import ModuleNames


def optimizer_name(optimizer: Optimizer) -> str:
    """Class of an optimizer with its package: `torch.optim.Adam`, `train.Lion`."""
    kind = type(optimizer)
    package = str(kind.__module__)
    package = "torch.optim" if package.startswith("torch.optim.") else package
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a group of parameters as JSON values."""
    return {key: plain_setting(key, value) for key, value in group.items() if key != "params"}


def names_in_groups(optimizer: Optimizer, names: ModuleNames) -> list[list[str]]:
    """Names of the parameters of each group, by their place where no module has them."""
    found: list[list[str]] = [[] for _ in optimizer.param_groups]
    for place, number, parameter in parameters_of(optimizer):
        owner = names.owner_of(parameter)
        found[number].append(place if owner is None else owner[1])
    return found


def held_by(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """Every parameter that these optimizers hold."""
    return [parameter for item in optimizers for _, _, parameter in parameters_of(item)]


def name_by_place(group_number: int, number: int) -> str:
    """Name of a parameter by its place in an optimizer."""
    return f"param_groups[{group_number}].params[{number}]"


def parameters_of(optimizer: Optimizer) -> list[tuple[str, int, torch.Tensor]]:
    """Every parameter with its name by place, and the number of its group."""
    return [
        (name_by_place(group_number, number), group_number, parameter)
        for group_number, group in enumerate(optimizer.param_groups)
        for number, parameter in enumerate(group["params"])
    ]
