"""Small ONNX models, made without an exporter."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20


def convolution(seed: int = 0) -> onnx.ModelProto:
    """A convolution, a batch norm, a relu and a linear layer: what fusions work on. Takes `x` of [batch, 3, 8, 8]."""
    draw = np.random.default_rng(seed)

    def held(name: str, *shape: int, positive: bool = False) -> onnx.TensorProto:
        values = draw.standard_normal(shape).astype("f4")
        return numpy_helper.from_array(abs(values) + 0.1 if positive else values, name)

    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["conv"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization", ["conv", "scale", "shift", "mean", "var"], ["norm"], "norm"
        ),
        helper.make_node("Relu", ["norm"], ["relu"], "relu"),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"], "pool"),
        helper.make_node("Flatten", ["pool"], ["flat"], "flat"),
        helper.make_node("MatMul", ["flat", "head"], ["logits"], "head"),
    ]
    held_tensors = [
        held("weight", 8, 3, 3, 3), held("scale", 8), held("shift", 8), held("mean", 8), held("var", 8, positive=True),
        held("head", 8, 5),
    ]  # fmt: skip
    return made(nodes, [("x", ["batch", 3, 8, 8])], [("logits", ["batch", 5])], held_tensors)


def made(nodes, inputs, outputs, held=(), *, opset: int = OPSET) -> onnx.ModelProto:
    """A model of float32 inputs and outputs, each a name and a shape."""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in several]
        for several in (inputs, outputs)
    ]
    graph = helper.make_graph(list(nodes), "graph", *values, list(held))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def written(model: onnx.ModelProto, path: Path) -> Path:
    """The model as a file."""
    path.write_bytes(model.SerializeToString())
    return path
