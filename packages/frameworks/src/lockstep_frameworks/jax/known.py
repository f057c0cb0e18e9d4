"""Programs that were traced before, with what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax

from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.jax.evaluation import MAPPED
from lockstep_frameworks.jax.labels import Labels
from lockstep_frameworks.jax.objects import leaf_names_of_equinox, leaf_names_of_nnx
from lockstep_frameworks.jax.programs import Program, peak_bytes, program_of
from lockstep_frameworks.jax.roles import (
    Arguments,
    has_backward,
    inputs_of_results,
    roles_of,
    roles_of_update,
)
from lockstep_frameworks.jax.scopes import Module, Scopes
from lockstep_frameworks.jax.trees import Path, argument_paths, leaf_paths


@dataclass(eq=False)
class Known:
    """A program that was traced.

    program: Flat.
    arguments: Paths of its arguments and results.
    modules: What is known of modules, by path.
    """

    program: Program
    arguments: Arguments
    modules: Mapping[str, Module]
    sites: dict[tuple[Program, int, str], CodeSite] = field(default_factory=dict)

    @cached_property
    def has_backward(self) -> bool:
        """Whether it takes a gradient."""
        return has_backward(self.program)

    @cached_property
    def hides_gradient(self) -> bool:
        """Whether its gradients are of no parameter that goes in: inside of a loop or on each device."""
        if self.has_backward:
            return not self.labels.roles.parameters
        mapped = (one for one in self.program.operations if one.name in MAPPED)
        return any(has_backward(program_of(one.equation.params["jaxpr"])) for one in mapped)

    @cached_property
    def labels(self) -> Labels:
        """What its operations are called, where it takes a gradient."""
        return Labels(self.program, roles_of(self.program, self.arguments), self.modules)

    @cached_property
    def peak_bytes(self) -> int:
        """How much memory it takes to evaluate."""
        return peak_bytes(self.program)

    @cached_property
    def inputs_of_results(self) -> list[set[int]]:
        """For each result of an update, the inputs that it is made of element by element."""
        return inputs_of_results(self.program)

    def labels_of_update(self, names: Mapping[int, str], gradients: Mapping[str, int]) -> Labels:
        """What its operations are called where it updates parameters; see `roles_of_update`."""
        roles = roles_of_update(self.program, self.arguments, names, gradients)
        return Labels(self.program, roles)


class KnownPrograms:
    """Every program that was traced, by the jaxpr that JAX keeps of it."""

    def __init__(self) -> None:
        self.scopes = Scopes()
        self._known: dict[Any, Known] = {}

    def of(self, traced: Any, args: Sequence[Any] = ()) -> Known:
        """Return what is known of a function that was traced with these arguments."""
        closed = traced.jaxpr
        if closed not in self._known:
            names = closed.jaxpr.debug_info.arg_names or ()
            of_equinox = leaf_names_of_equinox(args)
            paths = argument_paths(traced.args_info, names)
            inputs = [of_equinox.get(path[1:], path) for path in paths]
            arguments = Arguments(inputs, _names_of(traced, inputs), leaf_paths(traced.out_info))
            self._known[closed] = Known(program_of(closed), arguments, self.scopes.modules)
        return self._known[closed]

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


def _names_of(traced: Any, inputs: Sequence[Path]) -> list[Path]:
    """The paths of the arguments; flax NNX hands modules over as lists, and tells what is in them apart."""
    tree = jax.tree_util.tree_unflatten(traced.in_tree, range(len(inputs)))
    of_nnx = leaf_names_of_nnx(tree)
    return [
        (path[0], *of_nnx[place]) if place in of_nnx else path for place, path in enumerate(inputs)
    ]


def dynamic_leaves(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the leaves of the arguments of a function under `jax.jit`, without those that are part of the program."""
    info = getattr(function, "_jit_info", None)
    given = getattr(info, "static_argnums", ()) or ()
    numbers = {one + len(args) if one < 0 else one for one in given}  # also of one left out
    names = set(getattr(info, "static_argnames", ()) or ())
    positional = [one for place, one in enumerate(args) if place not in numbers]
    named = {name: one for name, one in kwargs.items() if name not in names}
    return list(jax.tree_util.tree_leaves((positional, named)))
