"""A program of `torch.export` run node by node, as calls of a recording."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from lockstep.recorder import argument_tensors, module_of, plain_arguments
from lockstep.recordings import CallKind, Phase, ReadCall, ReadTensor, Role
from lockstep_serve.servable import Array, Arrays


def program_calls(path: Path, inputs: Arrays) -> Iterator[ReadCall]:
    """Return the calls of a program: one for each module, then one for each of its operators.

    path: Of a file that `torch.export.save` wrote.
    inputs: By the names of its signature.
    """
    program = torch.export.load(path)
    modules: dict[str, list[ReadTensor]] = {}
    for name, value in program.state_dict.items():
        held = ReadTensor(Role.PARAM, name, _array(value))
        modules.setdefault(name.rpartition(".")[0], []).append(held)
    for module, tensors in modules.items():
        yield ReadCall(0, module, "torch.nn.Module", tensors, kind=CallKind.INIT, phase=Phase.INIT)
    run = _Recorded(program.module())
    given = [
        torch.from_numpy(np.array(inputs[name])) for name in program.graph_signature.user_inputs
    ]
    with torch.no_grad():
        run.run(*given)
    yield from run.calls


def called(path: Path) -> list[tuple[str, str]]:
    """The nodes of a program that call an operator, each with the operator's name."""
    nodes = torch.export.load(path).graph.nodes
    return [(one.name, str(one.target)) for one in nodes if one.op == "call_function"]


class _Recorded(fx.Interpreter):
    """Runs a graph, and keeps what every operator was given and made."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.calls: list[ReadCall] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function" or n.target is operator.getitem:
            return super().run_node(n)
        arguments, keywords = self.fetch_args_kwargs_from_env(n)
        entering = [
            ReadTensor(Role.INPUT, name, _array(one))
            for name, one in argument_tensors(arguments, keywords)
        ]
        made = super().run_node(n)
        leaving = [
            ReadTensor(Role.OUTPUT, "result" if not at else f"result.{at}", _array(one))
            for at, one in enumerate(made if isinstance(made, (tuple, list)) else (made,))
            if isinstance(one, torch.Tensor)
        ]
        if leaving:
            module, kind = module_of(n)
            plain = plain_arguments(arguments, keywords)
            tensors = [*entering, *leaving]
            self.calls.append(
                ReadCall(0, module, str(n.target), tensors, arguments=plain, module_class=kind)
            )
        return made


def _array(tensor: torch.Tensor) -> Array:
    """A copy: what comes later may write over it."""
    copied: Array = np.array(tensor.detach().cpu().resolve_conj().resolve_neg().numpy())
    return copied
