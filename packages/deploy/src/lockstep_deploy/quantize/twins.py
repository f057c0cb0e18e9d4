"""One graph that holds a model in float32 and, beside each of its layers, the layer as it was quantised.

Each quantised twin reads what the layer of float32 reads, so its error is its own and not what earlier layers passed
on. Two more values stand beside a layer with a weight: the variance of the error that its width makes, and the most
that it can make. Both are the layer's own operator, without its bias, on other numbers, for it is linear in its input
and in its weight:

    variance   op(x^2, v) + op(s^2 / 12, w^2)              v, s^2 / 12: of an error within half a step, evenly spread
    most       op(|x|, d) + op(e, |w| + d)                 d, e: how far a weight and an input may be off

(Widrow and Kollar, Quantization Noise, 2008, chapter 4: noise of variance step^2 / 12, uncorrelated with what is
rounded where that spreads over several steps; the second is the triangle inequality.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep_deploy.engines import engine
from lockstep_deploy.quantize.allowed import Allowance
from lockstep_deploy.quantize.graphs import Compared, Graph
from lockstep_deploy.quantize.layers import LOOKUP, Layer

_ENTRY = "quantised/"
"""Before names of the quantised graph that layers read."""

_TWIN = "twin/"
"""Before names of a layer's twin and of what is computed beside it."""


@dataclass(frozen=True, slots=True)
class Twin:
    """Names of a layer's values in the graph of twins.

    compared: The node.
    value: The result in float32.
    result: The twin's result, as codes where it is quantised.
    reads: The activation that the layer reads.
    variance, most: Of the twin's error; "" where nothing is known of the operator.
    layer: The layer, where its weight was quantised.
    """

    compared: Compared
    value: str
    result: str
    reads: str
    variance: str
    most: str
    layer: Layer | None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the values to compute for it."""
        named = (self.value, self.result, self.reads, self.variance, self.most)
        return tuple(name for name in named if name)


class TwinGraph:
    """The graph of twins.

    before, after: The graph of float32, and the quantised one.
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        self._before, self._after = before, after
        self._copied: set[str] = set()
        self.proto = type(before.proto)()
        self.proto.CopyFrom(before.proto)
        del self.proto.opset_import[:]
        self.proto.opset_import.extend(after.proto.opset_import)
        self.twins: list[Twin] = []

    def add(self, compared: Compared, layer: Layer | None, allowance: Allowance | None) -> None:
        """Put a node's twin beside it.

        compared: The node.
        layer: The layer that it is, if its weight was quantised.
        allowance: How far its weight may be off; None where that is not known.
        """
        result = self._layer(compared)
        before = self._before.by_name[compared.node.name]
        reads = next(
            (name for at, name in enumerate(before.input) if name in self._before.activations
             and (layer is None or at != layer.weight_at)), "",
        )  # fmt: skip
        variance = most = ""
        if layer is not None and allowance is not None and reads:
            variance, most = self._bounds(compared, layer, allowance, before, reads)
        self.twins.append(Twin(compared, compared.value, result, reads, variance, most, layer))

    def _layer(self, compared: Compared) -> str:
        """Copy a layer, and what quantises its result: its name is there already, for the result in float32."""
        result = self._node_copy(compared.node, _TWIN)
        if compared.grid is None:
            return result
        return self._node_copy(self._after.makers[compared.grid.codes], _TWIN, first=result)

    def _node_copy(self, node: Any, prefix: str, first: str = "") -> str:
        """Copy a node and all that it reads, back to values that the graph of float32 has.

        Parameters
        ----------
        prefix
            What the names of its outputs begin with.
        first
            What it reads in place of its first input.

        Returns
        -------
        str
            Its first output.
        """
        twin = self.proto.graph.node.add()
        twin.CopyFrom(node)
        twin.name = prefix + node.name
        for at, made in enumerate(node.output):
            twin.output[at] = prefix + made if made else ""
        for at, read in enumerate(node.input):
            if first and at == 0:
                twin.input[at] = first
            elif read and read not in self._before.activations:
                twin.input[at] = _ENTRY + read
                self._value_copy(read)
        return str(twin.output[0])

    def _value_copy(self, name: str) -> None:
        if name in self._copied:
            return
        self._copied.add(name)
        if name in self._after.initializers:
            one = self.proto.graph.initializer.add()
            one.CopyFrom(self._after.initializers[name])
            one.name = _ENTRY + name
            return
        node = self._after.makers[name]
        self._copied.update(node.output)
        self._node_copy(node, _ENTRY)

    def _bounds(
        self, compared: Compared, layer: Layer, allowance: Allowance, before: Any, reads: str
    ) -> tuple[str, str]:
        if layer.op == LOOKUP:
            return self._bounds_of_rows(layer, allowance, before, reads)
        weight = self._before.array(layer.weight)
        step = compared.entry.step if compared.entry else 0.0
        at = f"{_TWIN}{layer.name}/"
        square, magnitude = f"{at}square", f"{at}magnitude"
        self._node("Mul", [reads, reads], square)
        self._node("Abs", [reads], magnitude)
        # What a batch has as its shape is known when it runs: a number times nothing, plus the number.
        self._node("Mul", [square, self._constant(f"{at}nothing", np.float32(0))], f"{at}zeros")
        self._node(
            "Add",
            [f"{at}zeros", self._constant(f"{at}step", np.float32(step**2 / 12))],
            f"{at}noise",
        )
        off = f"{at}noise"
        if compared.entry is not None:
            off = self._off(compared, at, reads)
        parts = (
            (square, allowance.variance, f"{at}by_weight"),
            (f"{at}noise", np.square(weight), f"{at}by_input"),
            (magnitude, allowance.most, f"{at}most_by_weight"),
            (off, np.abs(weight) + allowance.most, f"{at}most_by_input"),
        )
        for value, other, output in parts:
            self._same(before, layer, value, self._constant(f"{output}.weight", other), output)
        self._node("Add", [f"{at}by_weight", f"{at}by_input"], f"{at}variance")
        self._node("Add", [f"{at}most_by_weight", f"{at}most_by_input"], f"{at}most")
        return f"{at}variance", f"{at}most"

    def _bounds_of_rows(
        self, layer: Layer, allowance: Allowance, before: Any, indices: str
    ) -> tuple[str, str]:
        """Of a lookup: the rows that are looked up of what is allowed to each weight."""
        found = []
        for key, allowed in (("variance", allowance.variance), ("most", allowance.most)):
            name = f"{_TWIN}{layer.name}/{key}"
            self._same(before, layer, indices, self._constant(f"{name}.table", allowed), name)
            found.append(name)
        return found[0], found[1]

    def _off(self, compared: Compared, at: str, reads: str) -> str:
        """How far each input may be off: half a step, or as far as it lies beyond the ends of its grid."""
        grid = compared.entry
        assert grid is not None
        ends = [(grid.least - grid.zero) * grid.step, (grid.most - grid.zero) * grid.step]
        low, high = (
            self._constant(f"{at}{name}", np.float32(end))
            for name, end in zip(("low", "high"), ends, strict=True)
        )
        self._node("Max", [reads, low], f"{at}above")
        self._node("Min", [f"{at}above", high], f"{at}within")
        self._node("Sub", [reads, f"{at}within"], f"{at}beyond")
        self._node("Abs", [f"{at}beyond"], f"{at}clipped")
        self._node(
            "Max",
            [f"{at}clipped", self._constant(f"{at}half", np.float32(grid.step / 2))],
            f"{at}off",
        )
        return f"{at}off"

    def _same(self, before: Any, layer: Layer, value: str, weight: str, output: str) -> None:
        """The layer's operator on other numbers, without its bias."""
        node = self.proto.graph.node.add()
        node.CopyFrom(before)
        node.name = f"{output}.node"
        del node.input[:]
        node.input.extend([weight, value] if layer.weight_at == 0 else [value, weight])
        del node.output[:]
        node.output.append(output)

    def _node(self, op: str, inputs: list[str], output: str) -> None:
        helper = engine("onnx.helper")
        self.proto.graph.node.append(helper.make_node(op, inputs, [output], f"{output}.node"))

    def _constant(self, name: str, array: Any) -> str:
        numpy_helper = engine("onnx.numpy_helper")
        self.proto.graph.initializer.append(
            numpy_helper.from_array(np.asarray(array, dtype=np.float32), name)
        )
        return name

    def sorted_model(self) -> Any:
        """The model with its nodes in an order in which each value is made before it is read."""
        engine("onnxruntime.quantization.onnx_model").ONNXModel(self.proto).topological_sort()
        return self.proto
