"""Small trainings of MindSpore with one thing wrong: mindspore_training.py MODE [FAULT].

MODE is functional, cells, graph, jit, or beside-torch. Prints a digest of all parameters after the last step.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

MODE = sys.argv[1]
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
with contextlib.suppress(SystemError):
    # MindSpore 2.10 was built with NumPy 1, and its first product with a number fails beside a newer one.
    Tensor(1.0) * 2.0


@ms.jit
def squashed(x: Tensor) -> Tensor:
    """A function that is compiled."""
    return ops.tanh(x) * 2


class Half(nn.Cell):
    """Adds one, and may round to bfloat16."""

    def construct(self, x: Tensor) -> Tensor:
        x = x + 1.0
        return ops.cast(ops.cast(x, ms.bfloat16), ms.float32) if FAULT == "bfloat16" else x


class Net(nn.Cell):
    """A convolution, a normalisation and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 3, 3, pad_mode="valid", has_bias=True)
        self.bn = nn.BatchNorm2d(3, eps=1e-3 if FAULT == "epsilon" else 1e-5)
        self.act = nn.LeakyReLU(0.3 if FAULT == "slope" else 0.1)
        self.pool = nn.MaxPool2d(2, 2)
        self.flat = nn.Flatten()
        self.half = Half()
        self.head = nn.Dense(12, 3)

    def construct(self, x: Tensor) -> Tensor:
        x = self.flat(self.pool(self.act(self.bn(self.c1(x)))))
        x = ops.gelu(x, approximate="tanh" if FAULT == "gelu" else "none")
        return self.head(self.half(squashed(x) if MODE == "jit" else x))


def main() -> None:
    if MODE == "graph":
        ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(0)
    random = np.random.default_rng(0)
    net, loss_of = Net(), nn.CrossEntropyLoss()
    for one in net.trainable_params():
        if one.ndim > 1:
            one.set_data(Tensor((random.normal(size=one.shape) * 0.3).astype("f4")))
    net.set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-2, eps=1e-3 if FAULT == "adam" else 1e-8)
    x = Tensor(random.normal(size=(4, 1, 6, 6)).astype("f4"))
    y = Tensor((np.arange(4) % 3).astype("i4"))
    if MODE in ("graph", "cells"):
        step = nn.TrainOneStepCell(nn.WithLossCell(net, loss_of), optimizer)
    else:
        gradient = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, optimizer.parameters)

        def step(x: Tensor, y: Tensor) -> None:
            _, gradients = gradient(x, y)
            optimizer(gradients)

    if MODE == "beside-torch":
        train_with_torch()
    for _ in range(3):
        step(x, y)
    bits = b"".join(one.asnumpy().tobytes() for one in net.get_parameters())
    print("weights", hashlib.sha256(bits).hexdigest())


def train_with_torch() -> None:
    """A step of a model of PyTorch in the same process."""
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()


main()
