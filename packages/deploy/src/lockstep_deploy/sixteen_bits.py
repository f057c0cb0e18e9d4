"""A file of 16 bits as the same graph in single precision, rounded where the program rounds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from lockstep_deploy.engines import engine
from lockstep_deploy.large_models import array_of_tensor
from lockstep_deploy.model_file import rename_values

NARROW = "/narrow"
"""What names of values end in that are of 16 bits still; for bfloat16 the runtime has no form to return them in."""

_IS_DTYPE = ("to", "dtype", "output_dtype")
"""Attributes of ONNX operators that say a dtype."""


def in_single_precision(model: Any, names: Collection[str], dtype: str) -> Any:
    """A copy of a model whose values of 16 bits are float32, rounded where they have these names.

    An operator is computed in single precision and rounded once, as torch and accelerators do it. The runtime has no
    kernels for bfloat16 on CPUs; for float16 it rounds between some of the nodes that a rule wrote, and not others.

    model: An `onnx.ModelProto`.
    names: Of values of this dtype that are rounded; those that a Cast makes are besides.
    dtype: "float16" or "bfloat16".
    """
    made = type(model)()
    made.CopyFrom(model)
    _widen(made.graph, names, getattr(engine("onnx").TensorProto, dtype.upper()))
    return made


def is_float16(model: Any) -> bool:
    """Whether a model has weights of float16."""
    half = engine("onnx").TensorProto.FLOAT16
    return any(one.data_type == half and len(one.dims) > 1 for one in model.graph.initializer)


def widened(model: Any) -> Any:
    """A copy of a float16 model that computes in single precision; its inputs and outputs stay in float16."""
    onnx = engine("onnx")
    single, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    made = in_single_precision(model, (), "float16")
    borders = [
        [one for one in some if one.type.tensor_type.elem_type == half]
        for some in (model.graph.input, model.graph.output)
    ]
    spelled = {one.name: f"{one.name}/single" for some in borders for one in some}
    for value in (*made.graph.input, *made.graph.output):
        if value.name in spelled:
            value.type.tensor_type.elem_type = half
    rename_values(made.graph, spelled)
    cast = onnx.helper.make_node
    enter = [cast("Cast", [one.name], [spelled[one.name]], to=single) for one in borders[0]]
    leave = [cast("Cast", [spelled[one.name]], [one.name], to=half) for one in borders[1]]
    nodes = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*enter, *nodes, *leave])
    return made


def _widen(graph: Any, names: Collection[str], kind: int) -> None:
    types = engine("onnx").TensorProto
    for tensor in graph.initializer:
        _widen_tensor(tensor, kind)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == kind:
            value.type.tensor_type.elem_type = types.FLOAT
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        casts = _widen_attributes(node, names, kind)
        rounded = [name for name in node.output if name and (casts or name in names)]
        node.output[:] = [f"{name}/wide" if name in rounded else name for name in node.output]
        graph.node.extend([node, *(new for one in rounded for new in _rounding(one, kind))])


def _rounding(name: str, kind: int) -> list[Any]:
    """The two nodes that make a value of what is its name and `/wide`."""
    onnx = engine("onnx")
    narrow = onnx.helper.make_node("Cast", [f"{name}/wide"], [f"{name}{NARROW}"], to=kind)
    return [
        narrow,
        onnx.helper.make_node("Cast", [f"{name}{NARROW}"], [name], to=onnx.TensorProto.FLOAT),
    ]


def _widen_attributes(node: Any, names: Collection[str], kind: int) -> bool:
    """Make dtypes, constants and graphs of a node those of single precision; returns whether it casts to 16 bits."""
    types, casts = engine("onnx").TensorProto, False
    for one in node.attribute:
        if one.name in _IS_DTYPE and one.i == kind:
            one.i, casts = types.FLOAT, True
        if one.HasField("t"):
            _widen_tensor(one.t, kind)
        if one.HasField("g"):
            _widen(one.g, names, kind)
    return casts


def _widen_tensor(tensor: Any, kind: int) -> None:
    onnx = engine("onnx")
    if tensor.data_type == kind:
        array = array_of_tensor(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
