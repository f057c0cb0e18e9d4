"""A quantised graph beside the float graph that it was made of, at the values that both have as floats."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_serve.parity.judging import relative_distance
from lockstep_serve.servable import Array

_CODES = {
    "QLinearMatMul": 6, "QLinearConv": 6, "QLinearAdd": 6, "QLinearMul": 6, "QGemm": 7, "QLinearSigmoid": 3,
    "QLinearLeakyRelu": 3, "QLinearSoftmax": 3, "QLinearAveragePool": 3, "QLinearGlobalAveragePool": 3,
    "QLinearConcat": 0,
}  # fmt: skip
"""Operators that give codes: which operand is the scale of their result; the zero point follows it."""

_OTHERS = frozenset(
    ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger",
     "ConvInteger", "MatMulIntegerToFloat", "MatMulNBits")
)  # fmt: skip
_OF_PROGRAMS = ("quantized_decomposed.", "torchao.", "quantized.")
_CODE = "_quantized"
"""What ONNX Runtime's quantiser puts behind the name of a value that it keeps as codes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One node of the float graph.

    name, operator, value: The node, what it does, and the value that it gives.
    before, error: Relative Euclidean distances between both graphs: the largest of what comes in, and of what goes out.
    """

    name: str
    operator: str
    value: str
    before: float
    error: float

    @property
    def sqnr_db(self) -> float:
        """The same as a ratio in dB."""
        return -20 * math.log10(self.error) if self.error else math.inf


def quantising_node(file: Path) -> str:
    """A node of a model that quantises, or computes with codes; empty where it has none."""
    if file.suffix == ".onnx":
        import onnx

        nodes = onnx.load(file, load_external_data=False).graph.node
        found = (one for one in nodes if one.op_type in _OTHERS or one.op_type in _CODES)
        return next((f"{one.name or one.output[0]} ({one.op_type})" for one in found), "")
    if file.suffix == ".pt2":
        from lockstep_serve.servables.torch_calls import called

        found_calls = (one for one in called(file) if one[1].startswith(_OF_PROGRAMS))
        return next((f"{name} ({operator})" for name, operator in found_calls), "")
    return ""


def float_values(nodes: Sequence[Any], values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values of a quantised graph as floats, by their names in the float graph.

    A value that is quantised and dequantised is what comes out of that, as its readers see it. Codes are multiplied by
    their scale. What exists as codes alone, with no scale that is known, is left out.

    nodes: Of the quantised graph.
    values: Its values by name, initialisers among them.
    """
    found = {name: one for name, one in values.items() if one.dtype.kind == "f"}
    quantised_from = {}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            quantised_from[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] in quantised_from:
            found[quantised_from[node.input[0]]] = values[node.output[0]]
        elif node.op_type in _CODES and node.output[0].endswith(_CODE):
            at = _CODES[node.op_type]
            scale, zero = values[node.input[at]], values.get(node.input[at + 1])
            codes = values[node.output[0]].astype("f8") - (0 if zero is None else zero.astype("f8"))
            found.setdefault(
                node.output[0].removesuffix(_CODE), (codes * scale.astype("f8")).astype("f4")
            )
    return found


def layers_of(
    nodes: Sequence[Any], reference: Mapping[str, Array], served: Mapping[str, Array]
) -> list[Layer]:
    """Nodes of the float graph whose result both graphs have as floats of one shape, in the order of the graph."""
    errors = {
        name: relative_distance(one, served[name])
        for name, one in reference.items()
        if one.dtype.kind == "f" and name in served and served[name].shape == one.shape
    }
    found = []
    for node in nodes:
        value = next((name for name in node.output if name in errors), None)
        if value is not None:
            before = max((errors[name] for name in node.input if name in errors), default=0.0)
            name = node.name or value
            found.append(Layer(name, node.op_type, value, before, errors[value]))
    return found


def write_layers(path: Path, layers: Sequence[Layer]) -> None:
    """Write a table of layers. Raises OSError if it cannot be written."""
    with path.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["layer", "operator", "value", "error_before", "error", "sqnr_db"])
        for one in layers:
            row = [f"{one.before:.6g}", f"{one.error:.6g}", f"{one.sqnr_db:.4g}"]
            table.writerow([one.name, one.operator, one.value, *row])


def most_added(layers: Sequence[Layer]) -> Layer | None:
    """The layer that adds most to the error of what comes in."""
    finite = [one for one in layers if np.isfinite(one.error)]
    return max(finite, key=lambda one: one.error - one.before, default=None)
