"""Run an exported program in torch, node by node, to compare the exported model with it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from lockstep.recorder import prepare_vector_math
from lockstep_deploy.calls import Array, arguments_of, array_of, computing
from lockstep_deploy.module_run import TAKEN, is_branching
from lockstep_deploy.node_values import Held, Values

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def held_by(program: ExportedProgram) -> dict[str, tuple[str, torch.Tensor]]:
    """Parameters, buffers and constants that a program uses: full name and tensor, by the placeholder's name."""
    used = {node.name for node in computing(program) if node.op == "placeholder"}
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _HELD and spec.arg.name in used and spec.target is not None:
            held = program.state_dict if spec.target in program.state_dict else program.constants
            found[spec.arg.name] = spec.target, held[spec.target]
    return found


def given_to(program: ExportedProgram) -> list[str]:
    """Names of what a program is given, in order."""
    specs = program.graph_signature.input_specs
    return [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]


class ProgramRun:
    """A run of a program; `node_values.NodeValues`.

    program: As `torch.export` gives it.
    inputs: By name.
    values: Where what its nodes return is kept.
    draw: Moves every number that it is given or holds to one of its neighbours, or lets it be, at random, and in 16
        bits every result too: what comes of that is what rounding may make of each value. None runs it as it is.
    random: What nodes that draw random numbers return, by name; those that are not in it draw.
    chosen: What nodes that choose among values returned elsewhere, by name; taken where the choice is as right as
        torch's.

    ties: The nodes whose choice was taken: equal values, of which torch took others.
    """

    def __init__(
        self,
        program: ExportedProgram,
        inputs: Mapping[str, torch.Tensor],
        values: Values,
        draw: np.random.Generator | None = None,
        random: Mapping[str, Any] | None = None,
        chosen: Mapping[str, Any] | None = None,
    ) -> None:
        prepare_vector_math()
        self._values, self._held = values, held_by(program)
        self._seed = None if draw is None else int(draw.integers(1 << 31))
        self._given = {name: self._moved(name, tensor) for name, tensor in inputs.items()}
        specs = program.graph_signature.input_specs
        walk = _Walk(program, values, draw, random or {}, chosen or {}, self._entering)
        self.ties = walk.ties
        with torch.no_grad():
            returned = walk.run(*(torch.empty(0) for _ in specs))
        kinds = [one.kind for one in program.graph_signature.output_specs]
        self.outputs = [
            one
            for kind, one in zip(kinds, returned, strict=True)
            if kind is OutputKind.USER_OUTPUT and isinstance(one, torch.Tensor)
        ]

    def given(self) -> Mapping[str, Array]:
        """The program's inputs, by name."""
        return {name: array_of(tensor) for name, tensor in self._given.items()}

    def held(self) -> Held:
        """Its parameters, buffers and constants, by full name; none without elements, which exporters leave out."""
        return {
            name: partial(lambda key: array_of(self._entering(key)), key)
            for key, (name, one) in self._held.items()
            if one.numel()
        }

    def value(self, node: fx.Node) -> Any:
        """Return the value of a node."""
        if node.op == "placeholder":
            is_known = node.name in self._held or node.name in self._given
            return array_of(self._entering(node.name)) if is_known else None
        return self._values.get(node.name)

    def _entering(self, name: str) -> torch.Tensor:
        """What a placeholder stands for; what is held is moved anew each time, the same way."""
        if name in self._held:
            return self._moved(name, self._held[name][1])
        return self._given.get(name, torch.empty(0))

    def _moved(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if self._seed is None:
            return tensor
        return moved(tensor, np.random.default_rng([self._seed, zlib.crc32(name.encode())]))

    def full_name(self, node: fx.Node) -> str | None:
        """The full name of what a placeholder holds; None for what the program is given."""
        return self._held[node.name][0] if node.name in self._held else None

    def returned(self) -> list[Array]:
        """Return the outputs of the program."""
        return [array_of(one) for one in self.outputs]


def note_branches(program: ExportedProgram, sets: Iterable[Mapping[str, torch.Tensor]]) -> None:
    """Run a program with branches on sets of inputs of one shape, and note in its nodes which branches they take."""
    if not any(map(is_branching, program.graph.nodes)):
        return
    shapes: dict[str, torch.Size] = {}
    for inputs in sets:
        own = {name: one.shape for name, one in inputs.items()}
        shapes = shapes or own
        if own == shapes:
            with Values() as values:
                ProgramRun(program, inputs, values)


def moved(tensor: torch.Tensor, draw: np.random.Generator) -> torch.Tensor:
    """Each element times 1 - u, 1 or 1 + u, where u is the distance of 1 to the next number of the dtype."""
    if not tensor.is_floating_point():
        return tensor
    signs = torch.from_numpy(draw.integers(-1, 2, tuple(tensor.shape), np.int8))
    moved: torch.Tensor = tensor.detach() * (
        1 + torch.finfo(tensor.dtype).eps * signs.to(tensor.dtype)
    )
    return moved


class _Walk(fx.Interpreter):
    def __init__(
        self,
        program: ExportedProgram,
        values: Values,
        draw: np.random.Generator | None,
        random: Mapping[str, Any],
        chosen: Mapping[str, Any],
        entering: Callable[[str], torch.Tensor],
    ) -> None:
        super().__init__(program.graph_module)
        self._computing = computing(program)
        self._chosen, self.ties = chosen, list[fx.Node]()
        self._kept, self._draw, self._random, self._entering = values, draw, random, entering

    def map_nodes_to_values(self, args: Any, n: fx.Node) -> Any:
        """Arguments with values in the places of nodes; what enters is made when it is read, and not kept."""

        def value(node: fx.Node) -> Any:
            return self._entering(node.name) if node.op == "placeholder" else self.env[node]

        return fx.node.map_arg(args, value)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and keep what it returns; what is written into state alone is in no file."""
        if n.op == "call_function" and n not in self._computing:
            return None
        if is_branching(n) and self._draw is None:
            given = self.fetch_args_kwargs_from_env(n)[0][0]
            n.meta.setdefault(TAKEN, set()).add(bool(given))
        result = self._random[n.name] if n.name in self._random else super().run_node(n)
        if n.name in self._chosen:
            result = self._choice(n, result, self._chosen[n.name])
        if n.op == "call_function":
            if self._draw is not None and isinstance(result, torch.Tensor):
                result = moved(result, self._draw) if result.itemsize == 2 else result
            kept = _plain(result)
            if kept is not None:
                self._kept.add(n.name, kept)
        return result

    def _choice(self, node: fx.Node, own: Any, other: Any) -> Any:
        """What a node chose elsewhere, if it is a choice among equal values; else what torch chose."""
        (source, *_), _ = self.fetch_args_kwargs_from_env(node)
        axis = arguments_of(node)["dim"]
        indices = other[1] if isinstance(other, tuple) else None
        if indices is None or indices.shape != own[1].shape or torch.equal(indices, own[1]):
            return own
        extent = source.shape[axis] if source.dim() else 1
        is_each_once = not (indices.sort(axis)[0].diff(dim=axis) == 0).any()
        if not is_each_once or indices.min() < 0 or indices.max() >= extent:
            return own
        found = source.gather(axis, indices)
        if not ((found == own[0]) | (found.isnan() & own[0].isnan())).all():
            return own
        self.ties.append(node)
        return own[0], indices


def _plain(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return array_of(result)
    if isinstance(result, (tuple, list)):
        return [_plain(one) for one in result]
    return result if isinstance(result, (bool, int, float)) else None
