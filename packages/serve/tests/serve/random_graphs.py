"""Small graphs drawn at random, some of which bring the instances of a batch together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

Draw = Callable[[int], int]
"""Gives a number from 0 to below another."""

EXTENTS = (3, 4)
"""Of an instance."""

_POINTWISE = ("Relu", "Tanh", "Neg", "Sigmoid")
_PAIRS = ("Add", "Mul", "Max")
_REDUCE = ("ReduceMax", "ReduceSum", "ReduceMean")


class OnnxGraph:
    """A graph over one input `x` of `[n, 3, 4]` that grows by one node after the other."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.ranks = {"x": 3}
        self.last = "x"

    def add(self, kind: str, inputs: list[str], rank: int, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"/{name}", **attributes))
        self.ranks[name] = self.last_rank = rank
        return name

    def numbers(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self) -> bytes:
        graph = helper.make_graph(
            self.nodes, "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *EXTENTS])],
            [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)], self.weights,
        )  # fmt: skip
        imports = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return bytes(model.SerializeToString())


def _reshape(graph: OnnxGraph, draw: Draw, x: str, rank: int) -> tuple[str, int]:
    """To sizes that are constants, or the batch's own by Shape, Gather, Concat."""
    shape = graph.add("Shape", [x], 1)
    first = graph.add("Gather", [shape, graph.numbers(np.array([draw(rank)]))], 1)
    if draw(2):
        first = graph.add("Mul", [first, graph.numbers(np.array([1 + draw(4)]))], 1)
    rest = [[-1], [-1, 2], [3, -1], [4, -1], [2, -1, 2], [12, -1]][draw(6)]
    parts = [first, graph.numbers(np.array(rest))]
    if not draw(3):
        parts.reverse()
    sizes = graph.add("Concat", parts, 1, axis=0)
    return graph.add("Reshape", [x, sizes], len(rest) + 1), len(rest) + 1


def grow(graph: OnnxGraph, draw: Draw) -> None:
    """Add an operator to what came last; it may be one that no runtime accepts."""
    x = graph.last
    rank = graph.ranks[x]
    axis = draw(rank) if rank else 0
    kind = draw(14)
    if kind == 0:
        x = graph.add(_POINTWISE[draw(4)], [x], rank)
    elif kind == 1:
        others = [name for name, own in graph.ranks.items() if own >= 2]
        other = others[draw(len(others))]
        x = graph.add(_PAIRS[draw(3)], [x, other], max(rank, graph.ranks[other]))
    elif kind == 2:
        order = [(one + draw(rank)) % rank for one in range(rank)]
        order = order if sorted(order) == [*range(rank)] else [*range(rank)][::-1]
        x = graph.add("Transpose", [x], rank, perm=order)
    elif kind == 3:
        keep = draw(2)
        axes = graph.numbers(np.array([axis]))
        x = graph.add(_REDUCE[draw(3)], [x, axes], rank - 1 + keep, keepdims=keep)
        rank = graph.ranks[x]
    elif kind == 4:
        x = graph.add("Softmax", [x], rank, axis=axis)
    elif kind == 5:
        x, _ = _reshape(graph, draw, x, rank)
    elif kind == 6:
        x = graph.add("Flatten", [x], 2, axis=draw(rank + 1))
    elif kind == 7:
        weight = np.random.default_rng(draw(99)).standard_normal(([3, 4, 12][draw(3)], 4))
        x = graph.add("MatMul", [x, graph.numbers(weight.astype("float32"))], rank)
    elif kind == 8:
        turned = graph.add("Transpose", [x], rank, perm=[*range(rank - 2), rank - 1, rank - 2])
        x = graph.add("MatMul", [x, turned] if draw(2) else [turned, x], rank)
    elif kind == 9:
        x = graph.add("Concat", [x, x], rank, axis=axis)
    elif kind == 10:
        ends = [draw(2), [2**40, 2, -1][draw(3)], axis]
        x = graph.add("Slice", [x, *(graph.numbers(np.array([one])) for one in ends)], rank)
    elif kind == 11:
        x = graph.add("Gather", [x, graph.numbers(np.array([0, 1]))], rank, axis=axis)
    elif kind == 12:
        x = graph.add("CumSum", [x, graph.numbers(np.array(axis))], rank)
    else:
        shape = graph.add("Shape", [graph.last], 1)
        grown = graph.add("Expand", [graph.numbers(np.float32(2).reshape([1] * rank)), shape], rank)
        x = graph.add("Mul", [x, grown], rank)
    graph.last = x


def onnx_answers(model: bytes) -> Callable[[Any], Any]:
    """What runs a model; raises where nothing can."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


class TorchSteps(torch.nn.Module):
    """Operators drawn at random, one after the other."""

    def __init__(self, draws: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.draws = draws
        self.linear = torch.nn.Linear(4, 4)
        self.inner = torch.nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for kind, one, other in self.draws:
            x = _step(self, first, x, kind, one, other)
        return x


def _step(
    net: TorchSteps, first: torch.Tensor, x: torch.Tensor, kind: int, one: int, other: int
) -> torch.Tensor:
    axis, second = one % max(x.ndim, 1), other % max(x.ndim, 1)
    n = first.shape[0]
    steps: list[Callable[[], torch.Tensor]] = [
        lambda: x.relu(),
        lambda: x.transpose(axis, second),
        lambda: x.softmax(axis),
        lambda: x.amax(axis, keepdim=bool(other % 2)),
        lambda: x.reshape(n, -1),
        lambda: x.reshape(-1, 12),
        lambda: x.reshape(3, n, -1),
        lambda: x.flatten(axis),
        lambda: x + first,
        lambda: net.linear(x),
        lambda: net.inner(x),
        lambda: x @ x.mT,
        lambda: x.cumsum(axis),
        lambda: x.flip(axis),
        lambda: torch.cat([x, x], axis),
        lambda: x.unsqueeze(axis),
        lambda: x[torch.arange(x.shape[0])],
        lambda: x.index_select(axis, torch.tensor([1, 0])),
        lambda: x.sort(axis).values,
        lambda: x.select(axis, 0),
        lambda: x.narrow(axis, 0, 1),
        lambda: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda: x * n,
        lambda: x / x.norm(dim=axis, keepdim=True),
        lambda: x.unflatten(axis, (-1, 1 + other % 3)),
        lambda: x * torch.ones(n, 1, 1),
        lambda: x - x.mean(),
        lambda: torch.where(x > 0, x, x.roll(1, axis)),
    ]
    return steps[kind % len(steps)]()


STEPS = 28
