"""An ONNX model run by the runtime, its values as what the nodes of the program returned that it was made of."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from lockstep.recordings import digest_of_bytes
from lockstep_deploy import runtime
from lockstep_deploy.calls import Array, array_of, is_call, names_of
from lockstep_deploy.engines import bfloat16, engine
from lockstep_deploy.large_models import array_of_tensor
from lockstep_deploy.module_run import draws_of
from lockstep_deploy.node_values import Held, Values
from lockstep_deploy.program_run import ProgramRun, held_by
from lockstep_deploy.runtime import Level, Session, Settings
from lockstep_deploy.sixteen_bits import NARROW

_SINGLE_EPS = float(np.finfo(np.float32).eps)
_NUMBER_ROUNDINGS = 4
"""Units in the last place that a number may be off which the runtime computes in single precision: powers and roots
are good to one or two, and one more is lost where their argument was rounded."""

_FX_NODE = re.compile(r"^%(\S+) :")


class ExportedRun:
    """A run of a graph with every node's output; `node_values.NodeValues`.

    graph: An `onnx.ModelProto`. It is run as it is: one that the runtime optimised is given as
        `runtime.optimized_graph` has it.
    program: The program that it was made of; the exporter names values after its nodes.
    inputs: By name.
    values: Where what its nodes return is kept.
    returned: What the model returned where its user ran it; None for what this run returns.

    beside: A run of the program; a number that it computes in double precision is taken from it where the graph's own
        is that number in single precision. None takes the graph's.
    """

    def __init__(
        self,
        graph: Any,
        program: ExportedProgram,
        inputs: Mapping[str, Array],
        values: Values,
        returned: Mapping[str, Any] | None = None,
    ) -> None:
        self.beside: ProgramRun | None = None
        self._inputs, self._values = inputs, values
        every = [one for node in graph.graph.node for one in node.output if one]
        names = dict.fromkeys(one for one in every if not one.endswith(NARROW))
        taken = as_taken(graph, inputs)
        for name, value in runtime.every_value(graph, taken, list(names), Settings(Level.NONE)):
            values.add(name, value)
        self._tensors = {one.name: one for one in graph.graph.initializer}
        self._meant: dict[str, torch.Tensor] = {}
        self._held = self._names_of_held(program)
        self._also = dict(_other_names(graph))
        self._returned_by = returned_by(program)
        outputs = [one.name for one in graph.graph.output]
        self._returned = [
            returned[name] if returned is not None else self._named(name) for name in outputs
        ]

    def given(self) -> Mapping[str, Array]:
        """The model's inputs, by name."""
        return self._inputs

    def held(self) -> Held:
        """Return the arrays that model and program both hold, by full name in the program."""

        def made(full: str, name: str) -> Array:
            found: Array = _as_meant(self._tensor(name), self._meant[full])
            return found

        return {
            full: partial(made, full, name)
            for full, name in self._held.values()
            if self._meant[full].numel()
        }

    def value(self, node: fx.Node) -> Any:
        """Return the value of a node; None if the graph has none, or one of another shape."""
        if node.op == "placeholder":
            held = self._held.get(node.name)
            if held is None:
                return self._inputs.get(node.name)
            return _as_meant(self._tensor(held[1]), self._meant[held[0]])
        found = next(
            (one for name in names_of(node) if (one := self._named(name)) is not None), None
        )
        if node.target is operator.getitem and found is None:
            found = self._named(f"{node.args[0]}__{node.args[1]}")
        meant = node.meta.get("val")
        if found is not None and (isinstance(meant, (bool, int, float)) or hasattr(meant, "node")):
            return self._number(node, np.asarray(found).item())  # as a free axis says it
        found = _as_meant(found, meant)
        return found if _has_form(found, meant) else None

    def _number(self, node: fx.Node, found: Any) -> Any:
        own = None if self.beside is None else self.beside.value(node)
        if isinstance(own, float) and isinstance(found, (int, float)):
            is_same = abs(own - found) <= _NUMBER_ROUNDINGS * _SINGLE_EPS * abs(own)
            return own if is_same else found
        return found

    def returned(self) -> list[Array]:
        """Return the outputs of the model."""
        if len(self._returned_by) != len(self._returned):
            return [np.asarray(one) for one in self._returned]
        pairs = zip(self._returned, self._returned_by, strict=True)
        return [_as_meant(np.asarray(one), node.meta.get("val")) for one, node in pairs]

    def _named(self, name: str) -> Any:
        for one in (name, self._also.get(name, name)):
            if one in self._values:
                return self._values.get(one)
            if one in self._inputs:
                return self._inputs[one]
        return self._tensor(name) if name in self._tensors else None

    def _tensor(self, name: str) -> Array:
        found: Array = array_of_tensor(self._tensors[name])
        return found

    def _names_of_held(self, program: ExportedProgram) -> dict[str, tuple[str, str]]:
        """Full name and name in the model of what a program holds: its own, or that of one that holds the same."""
        found, digests = {}, dict[str, str]()
        for placeholder, (full, tensor) in held_by(program).items():
            self._meant[full] = tensor
            if full in self._tensors:
                found[placeholder] = full, full
                continue
            digests = digests or {_digest(self._tensor(one)): one for one in self._tensors}
            real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            real = real.float() if real.dtype is torch.bfloat16 else real
            same = digests.get(_digest(array_of(real)))
            if same is not None:
                found[placeholder] = full, same
        return found


def run_as_user(
    model: Any,
    program: ExportedProgram,
    inputs: Mapping[str, Array],
    values: Values,
    settings: Settings,
    returned: Mapping[str, Any] | None = None,
) -> ExportedRun:
    """Run a model as its user will, and the graph that the runtime made of it with every node's output.

    model: An `onnx.ModelProto`.
    program, inputs, values: As `ExportedRun` takes them.
    settings: How the user runs it.
    returned: What the model returned where it was run already.
    """
    if returned is None and not draws_of(program):  # each run draws others
        returned = Session(model, settings).run(as_taken(model, inputs))
    graph = runtime.optimized_graph(model, settings, aside=values.folder)
    return ExportedRun(graph, program, inputs, values, returned)


def values_of(program: ExportedProgram, model: Any, dtype: torch.dtype | None = None) -> set[str]:
    """Names of a model's values that are the results of a program's nodes; of those of a dtype, where one is given."""
    also, found = dict(_other_names(model)), set[str]()
    for node in program.graph.nodes:
        made = node.meta.get("val")
        dtypes = {getattr(one, "dtype", None) for one in _several(made)}
        if is_call(node) and (dtype is None or dtype in dtypes):
            found |= {also.get(one, one) for one in names_of(node)} | set(names_of(node))
    return found


def returned_by(program: ExportedProgram) -> list[fx.Node]:
    """The nodes of what a program returns, in order."""
    by_name = {node.name: node for node in program.graph.nodes}
    specs = program.graph_signature.output_specs
    names = [
        one.arg.name
        for one in specs
        if one.kind is OutputKind.USER_OUTPUT and hasattr(one.arg, "name")
    ]
    return [by_name[one] for one in names if one in by_name]


def as_taken(model: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs as a graph takes them: float32 for 16 bits where that is what it has."""
    single = engine("onnx").TensorProto.FLOAT
    types = {one.name: one.type.tensor_type.elem_type for one in model.graph.input}
    return {
        name: one.astype(np.float32)
        if one.dtype in _narrow() and types.get(name) == single
        else one
        for name, one in inputs.items()
    }


def _narrow() -> tuple[Any, ...]:
    return np.dtype(np.float16), bfloat16()


def _several(made: Any) -> Sequence[Any]:
    return made if isinstance(made, (tuple, list)) else (made,)


def _as_meant(found: Any, meant: Any) -> Any:
    """Complex numbers of the pairs of real ones that ONNX has for them, 16 bits of float32; all else as it is."""
    if not (isinstance(found, np.ndarray) and isinstance(meant, torch.Tensor)):
        return found
    if meant.dtype in (torch.float16, torch.bfloat16) and found.dtype == np.float32:
        return found.astype(np.float16 if meant.dtype is torch.float16 else bfloat16())
    is_pairs = meant.is_complex() and found.dtype.kind == "f" and found.ndim == meant.dim() + 1
    if not is_pairs or found.shape[-1] != 2:
        return found
    return np.asarray(found[..., 0] + 1j * found[..., 1], dtype=f"c{2 * found.itemsize}")


def _has_form(found: Any, meant: Any) -> bool:
    """Whether a value has the rank and the dtype of what a node makes: an optimiser may use its name for another."""
    if not isinstance(found, np.ndarray) or not hasattr(meant, "shape"):
        return found is not None
    same = len(meant.shape) == found.ndim and str(meant.dtype) == f"torch.{found.dtype}"
    extents = zip(meant.shape, found.shape, strict=False)
    return same and all(not isinstance(one, int) or one == other for one, other in extents)


def _digest(array: Array) -> str:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype}{array.shape}{digest_of_bytes(data)}"


def _other_names(model: Any) -> Iterator[tuple[str, str]]:
    """The names of nodes whose value goes by that of a node that hands it on unchanged."""
    for node in model.graph.node:
        for entry in node.metadata_props:
            found = _FX_NODE.match(entry.value) if entry.key == "pkg.torch.onnx.fx_node" else None
            if found and len(node.output) == 1:
                yield found[1], node.output[0]
