"""Trainings of tensors larger than their sketch, for `--save program`: one model, six of whose parts have two forms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep

WIDTH = 32
Fault = Callable[[Tensor], Tensor]

FORMS = ("scale", "joined", "attention", "norm", "gate", "loss")
"""What has two forms of one function."""


def sound(value: Tensor) -> Tensor:
    """Nothing is wrong."""
    return value


def off(value: Tensor) -> Tensor:
    """A result that is off by 1e-3."""
    return value * 1.001


def scales_unseen(tensor: Tensor, factor: float) -> None:
    """Have a gradient multiplied on its way, past `register_hook`: no recorded call does it."""
    tensor._backward_hooks = OrderedDict({0: lambda gradient: gradient * factor})
    tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]


def halved(value: Tensor) -> Tensor:
    """A gradient of which half is lost past every recorded call."""
    if value.requires_grad:
        scales_unseen(value, 0.5)
    return value


class Wide(nn.Module):
    """Attention, a gate and a norm between two layers.

    Parameters
    ----------
    form
        The part that is in its second form.
    fault
        Is done to the result of that part.
    """

    def __init__(self, form: str = "", fault: Fault = sound) -> None:
        super().__init__()
        self.form, self.fault = form, fault
        self.enter, self.leave = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 20)
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        parts = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.norm = nn.LayerNorm(WIDTH)
        if form == "joined":
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([one.weight for one in parts]))
                self.qkv.bias.copy_(torch.cat([one.bias for one in parts]))
        else:
            self.q, self.k, self.v = parts

    def forward(self, x: Tensor) -> Tensor:
        h = self._scale(self.enter(x))
        q, k, v = self._heads(h)
        h = h + self._attention(q, k, v)
        h = self._gate(self._norm(h))
        return self.leave(h)

    def _is(self, form: str) -> bool:
        return self.form == form

    def _scale(self, h: Tensor) -> Tensor:
        if self._is("scale"):
            return self.fault((h @ self.w) * 0.5)
        return (h * 0.5) @ self.w

    def _heads(self, h: Tensor) -> tuple[Tensor, ...]:
        if self._is("joined"):
            return self.fault(self.qkv(h)).chunk(3, -1)
        return self.q(h), self.k(h), self.v(h)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._is("attention"):
            return self.fault(F.scaled_dot_product_attention(q, k, v))
        return (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ v

    def _norm(self, h: Tensor) -> Tensor:
        if self._is("norm"):
            mean, var = h.mean(-1, keepdim=True), h.var(-1, keepdim=True, unbiased=False)
            scaled = (h - mean) / (var + self.norm.eps).sqrt()
            return self.fault(scaled * self.norm.weight + self.norm.bias)
        return self.norm(h)

    def _gate(self, h: Tensor) -> Tensor:
        return self.fault(h * torch.sigmoid(h)) if self._is("gate") else F.silu(h)

    def loss(self, found: Tensor, wanted: Tensor) -> Tensor:
        """The mean squared error."""
        if self._is("loss"):
            return (self.fault(found) - wanted).square().mean()
        return F.mse_loss(found, wanted)


class Short(torch.optim.AdamW):
    """An update of one weight that is 10 % too small."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        weight = next(one for one in self.param_groups[0]["params"] if one.shape == (20, WIDTH))
        before = weight.detach().clone()
        super().step()
        weight.data.lerp_(before, 0.1)


def recorded(
    path: Path,
    form: str = "",
    *,
    fault: Fault = sound,
    optimizer: type[torch.optim.AdamW] = torch.optim.AdamW,
    save: str = "program",
    emulate: str = "",
    steps: int = 2,
    **options: object,
) -> Path:
    """Record some steps of a training; equal arguments give equal numbers."""
    torch.manual_seed(0)
    net = Wide(form, fault)
    made = optimizer(net.parameters(), 1e-2)
    with lockstep.record(
        path, model=net, save=save, steps=f"0:{steps}", emulate=emulate, **options
    ):
        torch.manual_seed(1)
        for _ in range(steps):
            x, y = torch.randn(4, 8, 16), torch.randn(4, 8, 20)
            made.zero_grad()
            net.loss(net(x), y).backward()
            made.step()
    return path
