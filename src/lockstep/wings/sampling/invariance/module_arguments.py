"""A call of a module: its tensors by the names of its arguments, so that it can be made again with others."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A module and the arguments of a call.

    Parameters
    ----------
    module
        The module.
    inputs
        The tensors among the arguments, by name.
    leaves
        Other arguments, each at its place; None where a tensor stands.
    names
        The name of the tensor at each place, "" for other arguments.
    tree
        How the leaves make `(args, kwargs)`.
    """

    module: torch.nn.Module
    inputs: Inputs
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    tree: TreeSpec

    @classmethod
    def of(
        cls, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ModuleCall:
        """Copy the arguments of a call."""
        found, tree = tree_flatten_with_path((tuple(args), dict(kwargs)))
        positional = _positional(module)
        inputs: dict[str, torch.Tensor] = {}
        leaves, names = [], []
        for path, leaf in found:
            is_tensor = isinstance(leaf, torch.Tensor)
            name = _name(path, positional) if is_tensor else ""
            if is_tensor:
                inputs[name] = leaf.detach().clone()
            names.append(name)
            leaves.append(None if is_tensor else copy.deepcopy(leaf))
        return cls(module, inputs, tuple(leaves), tuple(names), tree)

    def arguments(self, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments with tensors of the same names: the call may write into them."""
        leaves = [
            inputs[name].clone() if name else copy.deepcopy(leaf)
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, self.tree)
        return args, kwargs


def _positional(module: torch.nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        told = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # a forward of C
        return []
    return [one.name for one in told if one.kind in kinds]


def _name(path: Sequence[Any], positional: Sequence[str]) -> str:
    side, key, *rest = path
    if side.idx == 1:
        return f"{key.key}{keystr(tuple(rest))}"
    first = positional[key.idx] if key.idx < len(positional) else f"args[{key.idx}]"
    return f"{first}{keystr(tuple(rest))}"


def floating_leaves(result: Any) -> tuple[torch.Tensor, ...]:
    """Return copies of the tensors with floating-point numbers that a call gives."""
    return tuple(
        one.detach().clone()
        for one in tree_flatten(result)[0]
        if isinstance(one, torch.Tensor) and one.is_floating_point()
    )


__all__ = ["Inputs", "ModuleCall", "floating_leaves"]
