"""Reading a quantised graph beside the one of float32 that it was made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep_deploy.engines import engine

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """Where an activation is quantised: `(code - zero) * step`.

    codes: Name of the value that holds the codes.
    step: The scale.
    zero: The code of zero.
    least, most: Codes that there are.
    """

    codes: str
    step: float
    zero: int
    least: int
    most: int

    def values(self, codes: Array) -> Doubles:
        """Return the values that codes stand for."""
        found: Doubles = (codes.astype(np.float64) - self.zero) * self.step
        return found

    def nearest(self, values: Doubles) -> Doubles:
        """Values as this grid has them: rounded to a level, and clipped at its ends."""
        codes: Doubles = np.clip(np.rint(values / self.step) + self.zero, self.least, self.most)
        found: Doubles = (codes - self.zero) * self.step
        return found

    def flushed(self, values: Doubles, bits: int = 0) -> float:
        """Share of the values other than zero that it makes zero, or that the same range would in so many bits."""
        levels = (1 << bits) - 1 if bits else self.most - self.least
        half = self.step * (self.most - self.least) / levels / 2
        known = np.count_nonzero(values)
        kept = np.count_nonzero(np.abs(values) >= half)
        return float((known - kept) / known) if known else 0.0

    def clips(self, values: Doubles) -> npt.NDArray[np.bool_]:
        """Which values lie beyond its ends by more than a step."""
        return (values < (self.least - self.zero - 1) * self.step) | (
            values > (self.most - self.zero + 1) * self.step
        )


class Graph:
    """A graph with its values by name.

    proto: An `onnx.ModelProto`.
    """

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self.initializers = {one.name: one for one in proto.graph.initializer}
        self.makers = {name: node for node in proto.graph.node for name in node.output if name}
        self.by_name = {node.name: node for node in proto.graph.node}

    @cached_property
    def readers(self) -> dict[str, list[Any]]:
        """Nodes that read a value."""
        found: dict[str, list[Any]] = {}
        for node in self.proto.graph.node:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def activations(self) -> set[str]:
        """All values that depend on the inputs, or are inputs."""
        return {
            one.name for one in self.proto.graph.input if one.name not in self.initializers
        } | set(self.makers)

    def array(self, name: str) -> Array:
        """An initializer."""
        return np.asarray(engine("onnx.numpy_helper").to_array(self.initializers[name]))

    def grid_of(self, value: str) -> Grid | None:
        """How a value is quantised where it is read; None where it is not."""
        for node in self.readers.get(value, ()):
            if node.op_type == "QuantizeLinear" and node.input[1] in self.initializers:
                return self._grid(node)
        return None

    def grid_behind(self, value: str) -> Grid | None:
        """How a value was quantised that `DequantizeLinear` gave."""
        node = self.makers.get(value)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        maker = self.makers.get(node.input[0])
        return None if maker is None or maker.op_type != "QuantizeLinear" else self._grid(maker)

    def _grid(self, node: Any) -> Grid:
        zero = (
            self.array(node.input[2])
            if len(node.input) > 2 and node.input[2]
            else np.array(0, np.uint8)
        )
        kind = np.iinfo(zero.dtype)
        return Grid(
            node.output[0],
            float(self.array(node.input[1]).reshape(-1)[0]),
            int(zero.reshape(-1)[0]),
            kind.min,
            kind.max,
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """A node of both graphs.

    node: As it stands in the quantised graph.
    value: Name of its result in the graph of float32.
    result: Name of its result in the quantised graph, before it is quantised.
    entry: How its first input was quantised; None where it was not.
    grid: How its result is quantised; None where it is not.
    """

    node: Any
    value: str
    result: str
    entry: Grid | None
    grid: Grid | None

    @property
    def shown(self) -> str:
        """Name of its last result in the quantised graph: codes where it is quantised."""
        return self.result if self.grid is None else self.grid.codes


def compared_nodes(before: Graph, after: Graph, always: set[str]) -> Iterator[Compared]:
    """Nodes of both graphs whose numbers quantising changes, in the order of the graph.

    Those that only move numbers are left out: what they return is quantised as what they read is.

    before, after: The graph of float32, and the quantised one.
    always: Names of nodes whose weights were quantised.
    """
    quantisers = ("QuantizeLinear", "DequantizeLinear")
    for node in after.proto.graph.node:
        if node.op_type in quantisers or not node.output or node.name not in before.by_name:
            continue
        entries = [grid for grid in map(after.grid_behind, node.input) if grid is not None]
        grid = after.grid_of(node.output[0])
        value = _value(before, after, node.output[0])
        if value is None or (not entries and node.name not in always):
            continue
        moves = (
            any(one.step == grid.step and one.zero == grid.zero for one in entries)
            if grid
            else False
        )
        if moves and node.name not in always:
            continue
        yield Compared(node, value, node.output[0], entries[0] if entries else None, grid)


def _value(before: Graph, after: Graph, result: str) -> str | None:
    """The name that a result has in the graph of float32: its own, or that of what is dequantised of it."""
    if result in before.activations:
        return result
    for node in after.readers.get(result, ()):
        for restored in [one for code in node.output for one in after.readers.get(code, ())]:
            if restored.output[0] in before.activations:
                return str(restored.output[0])
    return None
