"""Write the results of a program's nodes as a recording, whoever ran them."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import fx
from torch.export import ExportedProgram

from lockstep_deploy.calls import (
    Array,
    WrittenRun,
    call_of,
    computing,
    filled,
    fused_call,
    given_call,
    held_calls,
    is_call,
    produced_by,
    returned_call,
    tensor_of,
)

_KEPT_BYTES = 1 << 20
"""Values above this lie in files until a run is written down."""


class NodeValues(Protocol):
    """The results of a program's nodes in one run."""

    def given(self) -> Mapping[str, Array]:
        """The program's inputs, by name."""

    def held(self) -> Held:
        """The other arrays that it computed with, by full name."""

    def value(self, node: fx.Node) -> Any:
        """An array, a list of them or a number; None where the run has none for this node."""

    def returned(self) -> list[Array]:
        """The program's outputs."""


class NamedValues(NodeValues, Protocol):
    """The same, with the names of what it holds."""

    def full_name(self, node: fx.Node) -> str | None:
        """The full name of what a placeholder holds; None for what the program is given."""


Held = Mapping[str, Callable[[], Array]]
"""What gives an array, by name: all weights of a model at once may not fit into memory."""


class Values:
    """Arrays by name; large ones lie in a folder that goes when this is left."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-values-")
        self._held: dict[str, Any] = {}

    @property
    def folder(self) -> Path:
        """The folder, for what else is to go with it."""
        return Path(self._folder.name)

    def add(self, name: str, value: Any) -> None:
        """Keep an array, a list of arrays, or a number."""
        if isinstance(value, np.ndarray) and value.nbytes > _KEPT_BYTES:
            path = Path(self._folder.name) / f"{len(self._held)}.npy"
            np.save(path, value.view(np.uint16) if value.dtype.kind == "V" else value)
            value = path, value.dtype  # NumPy's files have no bfloat16
        self._held[name] = value

    def get(self, name: str) -> Any:
        """Return the kept value; None if there is none."""
        value = self._held.get(name)
        return np.load(value[0]).view(value[1]) if isinstance(value, tuple) else value

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __enter__(self) -> Values:
        return self

    def __exit__(self, *raised: object) -> None:
        """Let go of the files."""
        self._folder.cleanup()


def write_operators(program: ExportedProgram, values: NodeValues, written: WrittenRun) -> list[str]:
    """Write a run with a call for each node of the program; returns the nodes that have no value.

    program: Whose nodes they are.
    values: Of the run.
    written: Where calls are written.
    """
    written.add(given_call(values.given()))
    for call in held_calls(values.held()):
        written.add(call)
    without, computed = [], computing(program)
    for node in program.graph.nodes:
        if (
            is_call(node)
            and node in computed
            and not isinstance(values.value(node), (bool, int, float))
        ):
            results = results_of(node, values)
            if results:
                written.add(_operator(node, values, results))
            else:
                without.append(node.name)
    written.add(returned_call(values.returned()))
    return without


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes of a program that a graph computes in one go, of which the last alone has a value there.

    last: That node.
    begins: The nodes whose values it is computed from.
    inside: The nodes that it computes, the last of them last.
    rewritten: Placeholders of parameters that it reads in another form than the program has.
    """

    last: fx.Node
    begins: tuple[fx.Node, ...]
    inside: tuple[fx.Node, ...]
    rewritten: tuple[fx.Node, ...]

    @property
    def is_fused(self) -> bool:
        """Whether the graph computes something else here than the last node alone."""
        return len(self.inside) > 1 or bool(self.rewritten)


def segments_of(program: ExportedProgram, has_value: Callable[[fx.Node], bool]) -> list[Segment]:
    """The segments of a program, in its order.

    program: Whose nodes they are.
    has_value: Whether a node has a value in the graph; for placeholders, whether it is given or held there as it is.
    """
    computed = computing(program)
    return [
        _segment(node, has_value)
        for node in program.graph.nodes
        if is_call(node) and node in computed and has_value(node)
    ]


def _segment(last: fx.Node, has_value: Callable[[fx.Node], bool]) -> Segment:
    begins: dict[fx.Node, None] = {}
    waiting, met = [last], {last}
    inside, rewritten = [], []
    while waiting:
        node = waiting.pop(0)
        if is_call(node):
            inside.append(node)
        for one in node.all_input_nodes:
            if one in met:
                continue
            met.add(one)
            if has_value(one):
                begins[one] = None
            elif one.op == "placeholder":  # a parameter that was folded into others
                rewritten.append(one)
            else:
                waiting.append(one)
    return Segment(last, tuple(begins), tuple(reversed(inside)), tuple(rewritten))


def write_segments(
    segments: Collection[Segment],
    values: NodeValues,
    written: WrittenRun,
    held: Collection[str] = (),
) -> None:
    """Write a run with a call for each segment: a single node as itself, several by the operators in them.

    segments: Of the program.
    values: Of the run.
    written: Where calls are written.
    held: Full names of parameters that are to be compared themselves.
    """
    written.add(given_call(values.given()))
    for call in held_calls({name: one for name, one in values.held().items() if name in held}):
        written.add(call)
    for one in segments:
        results = results_of(one.last, values)
        if not one.is_fused:
            written.add(_operator(one.last, values, results))
            continue
        operands = [value for node in one.begins for value in _arrays(values.value(node))]
        written.add(fused_call(one.last, operands, results))
    written.add(returned_call(values.returned()))


def results_of(node: fx.Node, values: NodeValues) -> dict[str, Array]:
    """Return the results of a node, by their names in a recording."""
    whole, found = values.value(node), {}
    parts = {one.args[1]: one for one in node.users if one.target is operator.getitem}
    for one in produced_by(node):
        value = whole
        if isinstance(whole, list):
            value = whole[one.index] if one.index < len(whole) else None
        elif one.index in parts:
            value = values.value(parts[one.index])
        if value is not None:
            found[one.name] = np.asarray(value)
    return found


def _operator(node: fx.Node, values: NodeValues, results: Mapping[str, Array]) -> Any:
    arguments, keywords = filled((node.args, node.kwargs), lambda one: _as_torch(values.value(one)))
    return call_of(node, tuple(arguments), dict(keywords), results)


def _as_torch(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_torch(one) for one in value]
    return tensor_of(value) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, list):
        yield from value
    elif value is not None:
        yield np.asarray(value)
