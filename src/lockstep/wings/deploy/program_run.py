"""An exported program run by torch, node by node: what the exported model is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from lockstep.capture.leaves import result_tensors
from lockstep.wings.deploy.calls import (
    Array,
    WrittenRun,
    array_of,
    call_of,
    given_call,
    held_calls,
    is_call,
    produced_by,
)

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class ProgramRun:
    """What a run of a program left behind, besides its recording.

    Parameters
    ----------
    outputs
        What it returned, in order.
    numbers
        Whole numbers that nodes made by name, such as extents of free axes.
    """

    outputs: list[Any] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)


def held_by(program: ExportedProgram) -> dict[str, tuple[str, torch.Tensor]]:
    """Parameters, buffers and constants that a program uses: full name and tensor, by the placeholder's name."""
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
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


def run_program(
    program: ExportedProgram, inputs: Mapping[str, torch.Tensor], written: WrittenRun | None = None
) -> ProgramRun:
    """Run a program node by node, each node a call of a recording.

    Parameters
    ----------
    program
        As `torch.export` gives it.
    inputs
        By name.
    written
        Where calls are written; None for nowhere.
    """
    if written is not None:
        written.add(given_call({name: array_of(tensor) for name, tensor in inputs.items()}))
        held = {name: array_of(tensor) for name, tensor in held_by(program).values()}
        for call in held_calls(held):
            written.add(call)
    walk = _Walk(program, inputs, written)
    with torch.no_grad():
        outputs = walk.run(*walk.entering)
    walk.done.outputs = list(outputs)
    return walk.done


class _Walk(fx.Interpreter):
    def __init__(
        self,
        program: ExportedProgram,
        inputs: Mapping[str, torch.Tensor],
        written: WrittenRun | None,
    ) -> None:
        super().__init__(program.graph_module)
        self._written, self.done = written, ProgramRun()
        held = held_by(program)
        named = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self.entering = [
            held[name][1] if name in held else inputs.get(name, torch.empty(0)) for name in named
        ]

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and write it down."""
        result = super().run_node(n)
        if isinstance(result, (bool, int, float)):
            self.done.numbers[n.name] = result
        elif is_call(n) and self._written is not None:
            arguments, keywords = self.fetch_args_kwargs_from_env(n)
            self._written.add(call_of(n, arguments, keywords, _results(n, result)))
        return result


def _results(node: fx.Node, result: Any) -> dict[str, Array]:
    wanted = {one.name for one in produced_by(node)}
    found = {name: array_of(tensor) for name, tensor in result_tensors(result) if name in wanted}
    if not found:  # a list of one, of which nothing is taken
        found = {name: array_of(tensor) for name, tensor in result_tensors(result)}
    return found
