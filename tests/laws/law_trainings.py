"""Small trainings for the tests of the laws: one function in two spellings, and mistakes behind the other spelling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from program_trainings import scales_unseen
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep

Forward = Callable[["Net", Tensor], Tensor]
Tail = Callable[["Net", int], None]


class Net(nn.Module):
    """Two layers around a square weight, so that a factor can stand before or after the product."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 12), nn.Linear(12, 4)
        self.w = nn.Parameter(torch.randn(12, 12) / 4)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def before(net: Net, x: Tensor) -> Tensor:
    """The reference: the factor stands before the product."""
    return net.leave((net.enter(x) * 0.5) @ net.w)


def after(net: Net, x: Tensor) -> Tensor:
    """The same function: the factor stands behind the product."""
    return net.leave((net.enter(x) @ net.w) * 0.5)


def after_times(factor: float) -> Forward:
    """The other spelling with a result that is off by a factor."""
    return lambda net, x: net.leave((net.enter(x) @ net.w) * (0.5 * factor))


def after_detached(share: float) -> Forward:
    """The other spelling, a share of whose gradient is lost; the forward pass is the same."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.enter(x)
        h = h.lerp(h.detach(), share)
        return net.leave((h @ net.w) * 0.5)

    return forward


def after_hooked(factor: float) -> Forward:
    """The other spelling, with something that multiplies a gradient: no recorded call does."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.enter(x)
        if h.requires_grad:
            scales_unseen(h, factor)
        return net.leave((h @ net.w) * 0.5)

    return forward


def by_threes(net: Net, x: Tensor) -> Tensor:
    """A factor of nine in two calls."""
    return net.leave((net.enter(x) @ net.w) * 3.0 * 3.0)


def by_nine(off: float = 1.0) -> Forward:
    """A factor of nine in one call, whose setting is another than that of either."""
    return lambda net, x: net.leave((net.enter(x) @ net.w) * (9.0 * off))


def after_logged(net: Net, x: Tensor) -> Tensor:
    """The other spelling, with a mean that nothing depends on and a copy that equals a tensor of the step."""
    h = net.enter(x)
    copied = h.detach().clone()
    copied.abs().mean()
    return net.leave((h @ net.w) * 0.5)


def nothing(net: Net, step: int) -> None:
    """Between two steps nothing happens."""


def scaled_by_hand(factor: float) -> Tail:
    """A weight is multiplied between two steps, past every recorded call."""

    def tail(net: Net, step: int) -> None:
        net.w.data = net.w.data * factor

    return tail


def recorded(
    path: Path,
    forward: Forward,
    *,
    save: str = "tensors",
    tail: Tail = nothing,
    dtype: torch.dtype = torch.float32,
    steps: int = 2,
) -> Path:
    """Record some steps of a training; equal arguments give equal numbers."""
    torch.manual_seed(0)
    net = Net(forward).to(dtype)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    with lockstep.record(path, model=net, save=save, steps=f"0:{steps}"):
        for step in range(steps):
            x, y = torch.randn(8, 6), torch.randn(8, 4)
            optimizer.zero_grad()
            F.mse_loss(net(x.to(dtype)).float(), y).backward()
            optimizer.step()
            tail(net, step)
    return path
