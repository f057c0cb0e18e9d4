"""A file of bfloat16 for a runtime without kernels for it: the same graph in single precision, rounded where it was."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from lockstep.wings.deploy.engines import engine

NARROW = "/narrow"
"""What names of values end in that are of bfloat16 still; the runtime has no form of NumPy's to return them in."""

_IS_DTYPE = ("to", "dtype", "output_dtype")
"""Attributes of ONNX operators that say a dtype."""


def in_single_precision(model: Any, names: Collection[str]) -> Any:
    """A copy of a model whose values of bfloat16 are float32, rounded to bfloat16 where they have these names.

    An operator of bfloat16 is computed in single precision and rounded once, as accelerators do it.

    Parameters
    ----------
    model
        An `onnx.ModelProto`.
    names
        Of values of bfloat16 that are rounded; those that a Cast makes are besides.
    """
    made = type(model)()
    made.CopyFrom(model)
    _widen(made.graph, names)
    return made


def _widen(graph: Any, names: Collection[str]) -> None:
    types = engine("onnx").TensorProto
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == types.BFLOAT16:
            value.type.tensor_type.elem_type = types.FLOAT
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        casts = _widen_attributes(node, names)
        rounded = [name for name in node.output if name and (casts or name in names)]
        node.output[:] = [f"{name}/wide" if name in rounded else name for name in node.output]
        graph.node.extend([node, *(new for one in rounded for new in _rounding(one))])


def _rounding(name: str) -> list[Any]:
    """The two nodes that make a value of what is its name and `/wide`."""
    onnx = engine("onnx")
    narrow = onnx.helper.make_node(
        "Cast", [f"{name}/wide"], [f"{name}{NARROW}"], to=onnx.TensorProto.BFLOAT16
    )
    return [
        narrow,
        onnx.helper.make_node("Cast", [f"{name}{NARROW}"], [name], to=onnx.TensorProto.FLOAT),
    ]


def _widen_attributes(node: Any, names: Collection[str]) -> bool:
    """Make dtypes, constants and graphs of a node those of single precision; returns whether it casts to bfloat16."""
    types, casts = engine("onnx").TensorProto, False
    for one in node.attribute:
        if one.name in _IS_DTYPE and one.i == types.BFLOAT16:
            one.i, casts = types.FLOAT, True
        if one.HasField("t"):
            _widen_tensor(one.t)
        if one.HasField("g"):
            _widen(one.g, names)
    return casts


def _widen_tensor(tensor: Any) -> None:
    onnx = engine("onnx")
    if tensor.data_type == onnx.TensorProto.BFLOAT16:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
