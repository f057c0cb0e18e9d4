"""An exported ONNX model run by the runtime, as the calls of the program that it was made of."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram

from lockstep.wings.deploy import runtime
from lockstep.wings.deploy.calls import (
    Array,
    WrittenRun,
    call_of,
    filled,
    given_call,
    held_calls,
    is_call,
    produced_by,
)
from lockstep.wings.deploy.engines import engine
from lockstep.wings.deploy.program_run import held_by
from lockstep.wings.deploy.runtime import Settings

_FX_NODE = re.compile(r"^%(\S+) :")
_KEPT_BYTES = 1 << 20
"""Values above this lie in files while a run is written down."""


@dataclass(frozen=True, slots=True)
class Unpartnered:
    """What of a program has no value of its own in the exported model: names of nodes."""

    operators: tuple[str, ...]
    held: tuple[str, ...]


class Values:
    """What the nodes of a graph returned, by name; large ones lie in a folder that goes with this."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-values-")
        self._held: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Keep a value."""
        if isinstance(value, np.ndarray) and value.nbytes > _KEPT_BYTES:
            path = Path(self._folder.name) / f"{len(self._held)}.npy"
            np.save(path, value)
            value = path
        self._held[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __getitem__(self, name: str) -> Any:
        value = self._held[name]
        return np.load(value) if isinstance(value, Path) else value

    def close(self) -> None:
        """Let go of the files."""
        self._folder.cleanup()


def write_exported_run(
    model: Any,
    program: ExportedProgram,
    inputs: Mapping[str, Array],
    numbers: Mapping[str, Any],
    written: WrittenRun,
) -> Unpartnered:
    """Run an exported model with every node's output, and write it down as the calls of its program.

    Parameters
    ----------
    model
        An `onnx.ModelProto`, exported without optimisation; the runtime's is off here, too.
    program
        The program that it was made of.
    inputs
        By name.
    numbers
        Whole numbers that nodes of the program made, for those of which the model has none.
    written
        Where calls are written.
    """
    values = Values()
    try:
        names = dict.fromkeys(one for node in model.graph.node for one in node.output if one)
        for name, value in runtime.every_value(
            model, inputs, list(names), Settings(runtime.Level.NONE)
        ):
            values.add(name, value)
        return _Partners(model, program, inputs, numbers, values).write(written)
    finally:
        values.close()


class _Partners:
    """The values of an exported model, as what the nodes of its program returned."""

    def __init__(
        self, model: Any, program: ExportedProgram, inputs: Mapping[str, Array], numbers: Mapping[str, Any],
        values: Values,
    ) -> None:  # fmt: skip
        self._program, self._inputs, self._numbers, self._values = program, inputs, numbers, values
        tensors = {one.name: one for one in model.graph.initializer}
        to_array = engine("onnx").numpy_helper.to_array
        self._held = {
            placeholder: (name, to_array(tensors[name]))
            for placeholder, (name, _) in held_by(program).items()
            if name in tensors
        }
        self._also = dict(_other_names(model))

    def write(self, written: WrittenRun) -> Unpartnered:
        """Write all calls that have a value; returns what has none."""
        written.add(given_call(self._inputs))
        for call in held_calls(dict(self._held.values())):
            written.add(call)
        without = []
        for node in self._program.graph.nodes:
            if not is_call(node) or node.name in self._numbers:
                continue
            results = self._results(node)
            if not results:
                without.append(node.name)
                continue
            arguments, keywords = (filled(one, self._argument) for one in (node.args, node.kwargs))
            written.add(call_of(node, tuple(arguments), dict(keywords), results))
        held = [
            name
            for placeholder, (name, _) in held_by(self._program).items()
            if placeholder not in self._held
        ]
        return Unpartnered(tuple(without), tuple(held))

    def _results(self, node: fx.Node) -> dict[str, Array]:
        found = {}
        whole = self._value(node.name)
        for one in produced_by(node):
            if isinstance(whole, list):
                value = whole[one.index] if one.index < len(whole) else None
            else:
                value = next(
                    (self._value(name) for name in one.values if self._value(name) is not None),
                    None,
                )
            if value is not None:
                found[one.name] = np.asarray(value)
        return found

    def _value(self, name: str) -> Any:
        for one in (name, self._also.get(name, name)):
            if one in self._values:
                return self._values[one]
        return None

    def _argument(self, node: fx.Node) -> Any:
        """What stands for a node among the arguments of another; None for what is not known."""
        if node.op == "placeholder":
            if node.name in self._held:
                return torch.from_numpy(np.array(self._held[node.name][1]))
            array = self._inputs.get(node.name)
            return None if array is None else torch.from_numpy(np.array(array))
        value = self._value(node.name)
        if value is None:
            value = self._part(node)
        if value is None:
            return self._numbers.get(node.name)
        if node.name in self._numbers:
            return np.asarray(value).item() if np.size(value) == 1 else None
        if isinstance(value, list):
            return [torch.from_numpy(np.array(one)) for one in value]
        return torch.from_numpy(np.array(value))

    def _part(self, node: fx.Node) -> Any:
        """A part of several results, by the name that the exporter gives it."""
        if len(node.args) == 2 and isinstance(node.args[0], fx.Node):
            return self._value(f"{node.args[0].name}__{node.args[1]}")
        return None


def _other_names(model: Any) -> Iterator[tuple[str, str]]:
    """The names of nodes whose value goes by that of a node that hands it on unchanged."""
    for node in model.graph.node:
        for entry in node.metadata_props:
            found = _FX_NODE.match(entry.value) if entry.key == "pkg.torch.onnx.fx_node" else None
            if found and len(node.output) == 1:
                yield found[1], node.output[0]
