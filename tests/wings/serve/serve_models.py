"""Models for the tests of `lockstep serve`, each a few nodes of ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *weights: Any
) -> Path:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def tensor(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def linear(path: Path, batch: int | str = "batch", scale: float = 1.0) -> Path:
    """`y = x @ w`, 4 numbers an instance in and 3 out; w[i, j] is `scale * (i - j)`."""
    weight = scale * (np.arange(4)[:, None] - np.arange(3)[None]).astype("float32")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return write(path, [node], [tensor("x", [batch, 4])], [tensor("y", [batch, 3])],
                 numpy_helper.from_array(weight, "w"))  # fmt: skip


def over_the_batch(path: Path) -> Path:
    """`y = x - mean over the batch`: what an instance is given depends on the others."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    axes = numpy_helper.from_array(np.array([0]), "axes")
    return write(path, nodes, [tensor("x", ["batch", 4])], [tensor("y", ["batch", 4])], axes)


def logarithm(path: Path) -> Path:
    """`y = log x`: NaN where x is negative."""
    node = helper.make_node("Log", ["x"], ["y"])
    return write(path, [node], [tensor("x", ["n", 2])], [tensor("y", ["n", 2])])


def words(path: Path) -> Path:
    """Texts, given back."""
    node = helper.make_node("Identity", ["x"], ["y"])
    kind = TensorProto.STRING
    return write(path, [node], [tensor("x", ["n"], kind)], [tensor("y", ["n"], kind)])


def of_every_kind(path: Path) -> Path:
    """One input and output of each dtype, given back."""
    whole = [f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)]
    kinds = ["BOOL", *whole, "FLOAT16", "FLOAT", "DOUBLE"]
    nodes = [helper.make_node("Identity", [f"in_{one}"], [f"out_{one}"]) for one in kinds]
    kind = {one: getattr(TensorProto, one) for one in kinds}
    inputs = [tensor(f"in_{one}", ["n", 2], kind[one]) for one in kinds]
    outputs = [tensor(f"out_{one}", ["n", 2], kind[one]) for one in kinds]
    return write(path, nodes, inputs, outputs)
