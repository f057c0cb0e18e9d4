"""A call of a module: its tensors by the names of its arguments, so that it can be made again with others."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
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

    module: The module.
    inputs: The tensors among the arguments, by name.
    leaves: Other arguments, each at its place; None where a tensor stands.
    names: The name of the tensor at each place, "" for other arguments.
    held: Names of the tensors that each other argument holds, as a cache does, in the order in which it is copied.
    tree: How the leaves make `(args, kwargs)`.
    """

    module: torch.nn.Module
    inputs: Inputs
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    held: tuple[tuple[str, ...], ...]
    tree: TreeSpec

    @classmethod
    def of(
        cls, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ModuleCall:
        """Copy the arguments of a call."""
        found, tree = tree_flatten_with_path((tuple(args), dict(kwargs)))
        positional = _positional(module)
        inputs: dict[str, torch.Tensor] = {}
        inside: dict[str, torch.Tensor] = {}
        leaves, names, held = [], [], []
        for path, leaf in found:
            is_tensor, name = isinstance(leaf, torch.Tensor), _name(path, positional)
            if is_tensor:
                inputs[name] = leaf.detach().clone()
            tensors = [] if is_tensor else _tensors_in(leaf)
            within = {f"tensor {at} of {name}": one for at, one in enumerate(tensors)}
            inside |= {key: one.detach().clone() for key, one in within.items()}
            names.append(name if is_tensor else "")
            held.append(tuple(within))
            leaves.append(None if is_tensor else _copied(leaf, lambda one: one.detach().clone()))
        return cls(module, {**inputs, **inside}, tuple(leaves), tuple(names), tuple(held), tree)

    @property
    def goes_on(self) -> bool:
        """Whether the call goes on with what earlier calls left in an argument, as in a cache."""
        return any(self.held)

    def held_numbers(self) -> tuple[torch.Tensor, ...]:
        """The floating-point tensors that other arguments hold."""
        held = [self.inputs[name] for names in self.held for name in names]
        return tuple(one for one in held if one.is_floating_point())

    def held_without_rows(self, axis: int) -> str:
        """The name of a tensor in a cache that has numbers and no such axis of rows; "" for none."""
        inside = [name for held in self.held for name in held]
        given = [one for name, one in self.inputs.items() if name not in inside]
        rows = next((int(one.shape[axis]) for one in given if one.ndim > axis), 0)
        return next(
            (
                name
                for name in inside
                if (one := self.inputs[name]).is_floating_point()
                and one.numel()
                and (one.ndim <= axis or one.shape[axis] != rows)
            ),
            "",
        )

    def arguments(self, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments with tensors of the same names: the call may write into them."""
        leaves = [
            inputs[name].clone() if name else _with_tensors(leaf, [inputs[one] for one in held])
            for name, leaf, held in zip(self.names, self.leaves, self.held, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, self.tree)
        return args, kwargs


def goes_on(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument that is no tensor holds some."""
    leaves = tree_flatten((tuple(args), dict(kwargs)))[0]
    return any(not isinstance(one, torch.Tensor) and _tensors_in(one) for one in leaves)


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class _Copying(TorchFunctionMode):
    """Puts other tensors into a copy of an object, each where a tensor stands."""

    def __init__(self, instead: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        one, memo = args
        memo[id(one)] = self._instead(one)
        return memo[id(one)]


def _copied(leaf: Any, instead: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(leaf, _PLAIN):
        return leaf
    with _Copying(instead):
        return copy.deepcopy(leaf)


def _with_tensors(leaf: Any, tensors: Iterable[torch.Tensor]) -> Any:
    """A copy that holds copies of these, in the order in which its own are copied."""
    remaining = iter(tensors)
    return _copied(leaf, lambda _: next(remaining).clone())


def _tensors_in(leaf: Any) -> list[torch.Tensor]:
    """The tensors that a copy of an object copies, in this order; none of a module, whose weights they are."""
    found: list[torch.Tensor] = []

    def note(one: torch.Tensor) -> torch.Tensor:
        found.append(one)
        return one

    if not isinstance(leaf, torch.nn.Module):
        _copied(leaf, note)
    return found


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


__all__ = ["Inputs", "ModuleCall", "floating_leaves", "goes_on"]
