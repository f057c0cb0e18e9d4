"""One small training, compiled in every way that scripts compile theirs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[int], Tensor]


class Scaled(torch.autograd.Function):
    """A custom function within what is compiled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * F.gelu(self.fc(Scaled.apply(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.block, self.head = nn.Embedding(7, 4), Block(), nn.Linear(4, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.emb(x)))


class Broken(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.emb(x))
        torch._dynamo.graph_break()
        return self.head(x)


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="aot_eager", **options)


def whole(**options: Any) -> Callable[[Net], nn.Module]:
    return lambda net: compiled(net, **options)


def in_place(net: Net) -> nn.Module:
    net.compile(backend="aot_eager")
    return net


def block(net: Net) -> nn.Module:
    net.block = compiled(net.block)
    return net


def method(net: Net) -> nn.Module:
    net.forward = compiled(net.forward)
    return net


def function(net: Net) -> Callable[[Tensor], Tensor]:
    return compiled(lambda x: net(x))  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[Net], Callable[[Tensor], Tensor]]] = {
    "whole": whole(),
    "fullgraph": whole(fullgraph=True),
    "dynamic": whole(dynamic=True),
    "graph breaks": whole(),
    "in place": in_place,
    "a block": block,
    "a method": method,
    "a function over the model": function,
}


def built(way: str) -> Step:
    """A training step."""
    torch._dynamo.reset()
    gc.collect()  # models of trainings before, which recording would find
    torch.manual_seed(3)
    net = (Broken if way == "graph breaks" else Net)()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    model = WAYS[way](net) if way in WAYS else net

    def step(number: int) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randint(0, 7, (2, 6), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
