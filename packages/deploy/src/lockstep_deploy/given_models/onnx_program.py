"""An ONNX graph in the form of a program of torch: nodes in order, with the place that each has in the user's model."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import fx
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from lockstep_deploy import runtime
from lockstep_deploy.calls import Array
from lockstep_deploy.engines import engine
from lockstep_deploy.exported_run import as_taken
from lockstep_deploy.large_models import array_of_tensor, is_large
from lockstep_deploy.node_values import Held, Values
from lockstep_deploy.noted import module_of
from lockstep_deploy.runtime import Level, Settings

_VALUES = "onnx_values"
"""The key in `fx.Node.meta` for the names of a node's values."""

_NO_NAME = re.compile(r"\W")


class _Operator:
    """Stands for an operator of ONNX where torch has a function."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(self, *given: object, **named: object) -> None:
        """Nothing: a graph of ONNX is run by its runtime."""

    def __str__(self) -> str:
        return f"onnx.{self.name}"

    __repr__ = __str__


@dataclass(frozen=True)
class _Signature:
    output_specs: list[OutputSpec]


class OnnxProgram:
    """A graph of ONNX, read as far as segments of an `ExportedProgram` are.

    model: An `onnx.ModelProto`.

    graph: A placeholder for each input and initializer, a call for each node.
    graph_signature: Which nodes are returned.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.graph = model, fx.Graph()
        self._by_value: dict[str, fx.Node] = {}
        held = {one.name for one in model.graph.initializer}
        for one in model.graph.input:
            if one.name not in held:
                self._placeholder(one.name)
        for one in model.graph.initializer:
            self._placeholder(one.name)
        for node in model.graph.node:
            self._add(node)
        returned = [self._by_value[one.name] for one in model.graph.output]
        specs = [
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(one.name), None) for one in returned
        ]
        self.graph_signature = _Signature(specs)

    def _placeholder(self, name: str) -> None:
        node = self.graph.placeholder(_NO_NAME.sub("_", name) or "value")
        node.meta[_VALUES] = [name]
        self._by_value[name] = node

    def _add(self, node: Any) -> None:
        names = [*node.input, *_captured(node)]
        arguments = tuple(self._by_value[one] for one in names if one in self._by_value)
        attributes = dict(_attributes(node))
        called = self.graph.create_node(
            "call_function", _Operator(node.op_type), arguments, attributes
        )
        place = module_of(node) or _place_in(node.name)
        called.meta["nn_module_stack"] = {place: (place, "")} if place else {}
        called.meta[_VALUES] = list(node.output)
        outputs = [(at, one) for at, one in enumerate(node.output) if one]
        if len(outputs) == 1 and outputs[0][0] == 0:
            self._by_value[outputs[0][1]] = called
            return
        for at, one in outputs:
            part = self.graph.call_function(operator.getitem, (called, at))
            part.meta[_VALUES] = [one]
            self._by_value[one] = part


def names_of_values(node: fx.Node) -> list[str]:
    """Return the names of the values that a node makes; "" for one that is left out."""
    names: list[str] = node.meta[_VALUES]
    return names


def _captured(node: Any) -> Iterator[str]:
    """Names that graphs inside of a node may take from the graph around it."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from _captured(inner)
            yield from (one.name for one in graph.output)


def _attributes(node: Any) -> Iterator[tuple[str, Any]]:
    """Attributes that are numbers, texts, or lists of them."""
    for one in node.attribute:
        value = engine("onnx").helper.get_attribute_value(one)
        if isinstance(value, bytes):
            yield one.name, value.decode("utf-8", "replace")
        elif isinstance(value, (int, float)) or (
            isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)
        ):
            yield one.name, value


def _place_in(name: str) -> str:
    """The module path in a name as torch's older exporter gives it: `/layer1/conv/Conv` is of `layer1.conv`."""
    parts = name.strip("/").split("/")
    return ".".join(parts[:-1]) if name.startswith("/") and len(parts) > 1 else ""


class OnnxRun:
    """A run of a graph with every node's value; `node_values.NodeValues` of an `OnnxProgram`.

    program: The graph.
    inputs: By the graph's names.
    values: Where what nodes return is kept.
    draw: Moves every number that the graph is given or holds to one of its neighbours, or lets it be, at random.
    """

    def __init__(
        self,
        program: OnnxProgram,
        inputs: Mapping[str, Array],
        values: Values,
        draw: np.random.Generator | None = None,
    ) -> None:
        self._values = values
        model, self._inputs = program.model, dict(inputs)
        if draw is not None:
            self._inputs = {name: moved(one, draw) for name, one in self._inputs.items()}
            model = _with_moved_weights(model, draw)
        self._tensors = {one.name: one for one in model.graph.initializer}
        names = dict.fromkeys(one for node in model.graph.node for one in node.output if one)
        taken = as_taken(model, self._inputs)
        settings = Settings(Level.NONE)
        for name, value in runtime.every_value(model, taken, list(names), settings):
            values.add(name, value)
        self._returned = [one.name for one in model.graph.output]

    def given(self) -> Mapping[str, Array]:
        """The inputs, by name."""
        return self._inputs

    def held(self) -> Held:
        """The initializers, by name."""
        return {name: partial(self.named, name) for name in self._tensors}

    def full_name(self, node: fx.Node) -> str | None:
        """The name of the initializer that a placeholder stands for; None for an input."""
        (name,) = names_of_values(node)
        return name if name in self._tensors else None

    def named(self, name: str) -> Any:
        """The value of a name; None if there is none."""
        if name in self._values:
            return self._values.get(name)
        if name in self._tensors:
            return array_of_tensor(self._tensors[name])
        return self._inputs.get(name)

    def value(self, node: fx.Node) -> Any:
        """The value of a node; of several, a list."""
        found = [self.named(one) if one else None for one in names_of_values(node)]
        return found[0] if len(found) == 1 else found

    def returned(self) -> list[Array]:
        """What the graph returns."""
        return [np.asarray(self.named(one)) for one in self._returned]


def moved(array: Array, draw: np.random.Generator) -> Array:
    """Each element times 1 - u, 1 or 1 + u, where u is the distance of 1 to the next number of the dtype."""
    if array.dtype.kind != "f":
        return array
    eps = np.finfo(array.dtype).eps
    signs = draw.integers(-1, 2, array.shape).astype(array.dtype)
    found: Array = (array * (1 + eps * signs)).astype(array.dtype)
    return found


def _with_moved_weights(model: Any, draw: np.random.Generator) -> Any:
    if is_large(model):
        return model  # its inputs are moved; a copy of its weights may not fit into memory
    copy = type(model)()
    copy.CopyFrom(model)
    for one in copy.graph.initializer:
        array = array_of_tensor(one)
        if array.dtype.kind == "f":
            one.CopyFrom(engine("onnx").numpy_helper.from_array(moved(array, draw), one.name))
    return copy
