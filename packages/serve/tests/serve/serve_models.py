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


def linear(path: Path, batch: int | str = "batch", scale: float = 1.0, inner: int = 4) -> Path:
    """`y = x @ w`, `inner` numbers an instance in and 3 out; w[i, j] is `scale * (i - j)`."""
    weight = scale * (np.arange(inner)[:, None] - np.arange(3)[None]).astype("float32")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return write(path, [node], [tensor("x", [batch, inner])], [tensor("y", [batch, 3])],
                 numpy_helper.from_array(weight, "w"))  # fmt: skip


def over_the_batch(path: Path) -> Path:
    """`y = x - mean over the batch`: what an instance is given depends on the others."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    axes = numpy_helper.from_array(np.array([0]), "axes")
    return write(path, nodes, [tensor("x", ["batch", 4])], [tensor("y", ["batch", 4])], axes)


def scaled(path: Path) -> Path:
    """`y = x * by`, where `by` is one number for all instances."""
    node = helper.make_node("Mul", ["x", "by"], ["y"])
    inputs = [tensor("x", ["batch", 2]), tensor("by", [1])]
    return write(path, [node], inputs, [tensor("y", ["batch", 2])])


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


def of_the_clients(folder: Path) -> Path:
    """Models of several kinds, one with two versions, one entry that is no model."""
    linear(folder / "linear" / "1" / "model.onnx")
    linear(folder / "linear" / "3" / "model.onnx", scale=2.0)
    linear(folder / "by_two" / "1" / "model.onnx", batch=2)
    (folder / "by_two" / "serve.yaml").write_text("batches: true")
    over_the_batch(folder / "over_the_batch" / "1" / "model.onnx")
    logarithm(folder / "logarithm" / "1" / "model.onnx")
    words(folder / "words" / "1" / "model.onnx")
    of_every_kind(folder / "every_kind" / "1" / "model.onnx")
    broken = folder / "broken" / "1" / "model.onnx"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x08\x01no model")
    return folder


def deep(
    path: Path,
    layers: int = 6,
    *,
    fault: int | None = None,
    factor: float = 1.0,
    activation: str = "Relu",
) -> Path:
    """Layers of `Relu(LayerNorm(x @ w + b))`; layer `fault` has its weight times `factor`, or another activation."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(layers):
        weight = (random.standard_normal((16, 16)) / 4).astype("float32")
        arrays = {
            f"w{layer}": weight * np.float32(factor if layer == fault else 1.0),
            f"b{layer}": random.standard_normal(16).astype("float32"),
            f"g{layer}": np.ones(16, "float32"),
        }
        weights += [numpy_helper.from_array(one, name) for name, one in arrays.items()]
        names = [f"m{layer}", f"a{layer}", f"n{layer}", "y" if layer == layers - 1 else f"r{layer}"]
        nodes += [
            helper.make_node(
                "MatMul", [last, f"w{layer}"], [names[0]], name=f"layer{layer}/matmul"
            ),
            helper.make_node("Add", [names[0], f"b{layer}"], [names[1]], name=f"layer{layer}/add"),
            helper.make_node(
                "LayerNormalization", [names[1], f"g{layer}"], [names[2]], name=f"layer{layer}/norm"
            ),
            helper.make_node(
                activation if layer == fault else "Relu",
                [names[2]],
                [names[3]],
                name=f"layer{layer}/relu",
            ),
        ]
        last = names[3]
    return write(path, nodes, [tensor("x", ["batch", 16])], [tensor("y", ["batch", 16])], *weights)
