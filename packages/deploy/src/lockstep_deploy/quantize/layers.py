"""Which nodes of a model have weights to quantise, and which module of the training each of them was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep_deploy.engines import engine
from lockstep_deploy.large_models import array_of_tensor
from lockstep_deploy.noted import module_of, source_of

Floats = npt.NDArray[np.float32]

_WEIGHT_AT = {"Conv": (1,), "ConvTranspose": (1,), "Gemm": (1, 0), "MatMul": (1, 0)}
"""Operators that are quantised by their weights, and at which of their inputs a weight stands."""

LOOKUP = "Gather"
"""The operator of an embedding, quantised by its table where activations stay in float32."""

_LARGE = 256
"""Elements from which a weight in float32 is worth a word."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with a weight.

    name: Of the node, unique in its graph.
    op: Its ONNX operator.
    weight: Name of the initializer.
    weight_at: Which input of the node that is.
    shape: Of the weight.
    channel_axis: Axis of the weight along which outputs lie; None where outputs share it.
    module: Path of the module that it was exported from, "" where the file does not say.
    source: `file:line` that called it, "" where the file does not say.
    """

    name: str
    op: str
    weight: str
    weight_at: int
    shape: tuple[int, ...]
    channel_axis: int | None
    module: str = ""
    source: str = ""

    @property
    def elements(self) -> int:
        """How many weights it has."""
        return int(np.prod(self.shape))

    def __str__(self) -> str:
        """Its module, or else its node."""
        return self.module or self.name


def layers_of(proto: Any, *, lookups: bool = False) -> tuple[Layer, ...]:
    """The layers of a model in the order of its graph: float32 weights of Conv, ConvTranspose, Gemm and MatMul.

    proto: An `onnx.ModelProto`; nodes without a name get one.
    lookups: Whether tables of embeddings are layers too.
    """
    float32 = engine("onnx").TensorProto.FLOAT
    weights = {
        one.name: tuple(one.dims)
        for one in proto.graph.initializer
        if one.data_type == float32 and len(one.dims) >= 2 and min(one.dims) > 0
    }
    name_nodes(proto)
    found = []
    for node in proto.graph.node:
        at = [
            at
            for at in _WEIGHT_AT.get(node.op_type, (0,) if lookups and _looks_up_rows(node) else ())
            if at < len(node.input) and node.input[at] in weights
        ]
        others = [name for one, name in enumerate(node.input[:2]) if at and one != at[0]]
        if node.domain in ("", "ai.onnx") and at and not set(others) & set(weights):
            weight = node.input[at[0]]
            found.append(
                Layer(
                    node.name, node.op_type, weight, at[0], weights[weight],
                    _channel_axis(node, at[0], len(weights[weight])), _owner_of(weight, node), source_of(node),
                )
            )  # fmt: skip
    return tuple(found)


def name_nodes(proto: Any) -> None:
    """Give each node a name of its own, as quantisers and reports know them by it."""
    taken: set[str] = set()
    for at, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{at}"
            while node.name in taken:
                node.name += "_"
        taken.add(node.name)


def left_in_float32(proto: Any, quantised: Any) -> dict[str, int]:
    """Float32 weights of a model that it still has as it was quantised, in bytes by name."""
    float32 = engine("onnx").TensorProto.FLOAT
    before = {one.name for one in proto.graph.initializer}
    return {
        one.name: 4 * math.prod(one.dims)
        for one in quantised.graph.initializer
        if one.name in before
        and one.data_type == float32
        and len(one.dims) >= 2
        and math.prod(one.dims) >= _LARGE
    }


def weights_of(proto: Any, layers: tuple[Layer, ...]) -> dict[str, Floats]:
    """The layers' weights by the initializer's name."""
    wanted = {layer.weight for layer in layers}
    return {
        one.name: np.asarray(array_of_tensor(one), dtype=np.float32)
        for one in proto.graph.initializer
        if one.name in wanted
    }


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of a node, or what holds without it."""
    helper = engine("onnx.helper")
    found = [one for one in node.attribute if one.name == name]
    return helper.get_attribute_value(found[0]) if found else default


def _owner_of(weight: str, node: Any) -> str:
    """Module of a weight: the exporter keeps its path as the name, also where another module was folded into it."""
    module = module_of(node)
    return weight.removesuffix(".weight") if module and weight.endswith(".weight") else module


def _looks_up_rows(node: Any) -> bool:
    return bool(node.op_type == LOOKUP and attribute(node, "axis", 0) == 0)


def _channel_axis(node: Any, weight_at: int, dimensions: int) -> int | None:
    if node.op_type in ("Conv", LOOKUP):
        return 0
    if node.op_type == "ConvTranspose":
        # With groups the outputs of all groups share one axis, and a scale would belong to several of them.
        return 1 if attribute(node, "group", 1) == 1 else None
    if node.op_type == "Gemm":
        transposed = bool(attribute(node, ("transA", "transB")[weight_at], 0))
        return 0 if transposed == (weight_at == 1) else 1
    return dimensions - 1 if weight_at == 1 else dimensions - 2
