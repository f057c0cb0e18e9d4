"""Models that keep the instances of a batch apart, and models that bring them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = tuple[Tensor, ...]
Forward = Callable[..., Any]


class Net(nn.Module):
    """Parts by name, and what is done with them."""

    def __init__(self, forward: Forward, **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.step = forward

    def forward(self, *given: Tensor) -> Any:
        return self.step(*self.parts.values(), *given)


def rows(*shape: int) -> Tensor:
    return torch.randn(4, *shape)


def words(length: int = 5) -> Tensor:
    return torch.randint(0, 20, (4, length))


def _residual(first: nn.Module, norm: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
    return F.relu(x + second(F.relu(norm(first(x))))).mean((2, 3))


def _u_net(down: nn.Module, inner: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
    low = down(x)
    deep = inner(F.max_pool2d(low, 2))
    grown = F.interpolate(deep, scale_factor=2.0, mode="nearest")
    return up(torch.cat([low, grown], 1)).sigmoid()


def _squeezed(conv: nn.Module, gate: nn.Module, x: Tensor) -> Tensor:
    y = conv(x)
    return y * gate(F.adaptive_avg_pool2d(y, 1).flatten(1)).sigmoid()[:, :, None, None]


def _windows(attend: nn.Module, x: Tensor) -> Tensor:
    n = x.shape[0]
    parts = x.view(n, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 8)
    seen = attend(parts, parts, parts, need_weights=False)[0]
    return seen.view(n, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(n, 4, 4, 8)


def _vision(patches: nn.Module, token: nn.Module, block: nn.Module, x: Tensor) -> Tensor:
    seen = patches(x).flatten(2).transpose(1, 2)
    first = token.weight[None].expand(x.shape[0], -1, -1)
    return block(torch.cat([first, seen], 1))[:, 0]


def _routed(gate: nn.Module, experts: nn.Module, x: Tensor) -> Tensor:
    weight, chosen = gate(x).softmax(-1).topk(2, -1)
    picked = experts.weight.view(3, 8, 8)[chosen]
    return (torch.einsum("bd,bkde->bke", x, picked) * weight[..., None]).sum(1)


def _pooled(table: nn.Module, x: Tensor, length: Tensor) -> Tensor:
    mask = (torch.arange(x.shape[1]) < length[:, None]).float()[..., None]
    return (table(x) * mask).sum(1) / mask.sum(1).clamp(min=1)


def _rotated(project: nn.Module, x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[1])[:, None] / torch.tensor([1.0, 10.0, 100.0, 1000.0])
    turn = torch.cat([angle, angle], -1)
    y = project(x)
    half = torch.cat([-y[..., 4:], y[..., :4]], -1)
    return y * turn.cos() + half * turn.sin()


def _causal(project: nn.Module, x: Tensor) -> Tensor:
    n, length, _ = x.shape
    query, key, value = (
        one.view(n, length, 2, 4).transpose(1, 2) for one in project(x).chunk(3, -1)
    )
    mask = torch.ones(length, length).tril() == 0
    scores = (query @ key.transpose(-1, -2) / 2).masked_fill(mask, -1e9)
    return (scores.softmax(-1) @ value).transpose(1, 2).reshape(n, length, 8)


def _crossed(bottom: nn.Module, table: nn.Module, x: Tensor, kinds: Tensor) -> Tensor:
    every = torch.cat([bottom(x)[:, None], table(kinds)], 1)
    return torch.bmm(every, every.transpose(1, 2)).flatten(1)


def _biased(x: Tensor) -> Tensor:
    y = torch.baddbmm(x, x, x.transpose(1, 2))
    gate = torch.where(y > 0, y, 0.0).type_as(x).amax(2, keepdim=True).expand_as(y)
    return torch.addmm(gate.flatten(1), y.flatten(1), torch.eye(25)).view_as(y)


def _without_first(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] = 0.0
    y[:, 3:] += x[:, :3]
    return y


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


NOT_IN_ONNX = {"last word": "(Add) mixes", "a column set to zero": "(ScatterND) may mix"}
"""Proven as programs only. In graphs of ONNX both compute places in the whole batch, which a wrong index leaves; with
what is said of them."""

APART: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "perceptron": lambda: (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), (rows(6),)),
    "convolution, batch norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(36, 3)),
        (rows(3, 8, 8),)),
    "residual": lambda: (
        Net(_residual, a=nn.Conv2d(4, 4, 3, padding=1), b=nn.BatchNorm2d(4), c=nn.Conv2d(4, 4, 1)), (rows(4, 6, 6),)),
    "depthwise, in place": lambda: (
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU6(inplace=True), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)),
        (rows(4, 6, 6),)),
    "U-Net": lambda: (
        Net(_u_net, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(4, 4, 3, padding=1), c=nn.Conv2d(8, 1, 1)),
        (rows(3, 8, 8),)),
    "transposed convolution": lambda: (
        nn.Sequential(nn.Linear(6, 16), nn.Unflatten(1, (4, 2, 2)), nn.ConvTranspose2d(4, 3, 2, 2), nn.Tanh()),
        (rows(6),)),
    "group norm": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), (rows(3, 6, 6),)),
    "instance norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU()), (rows(3, 6, 6),)),
    "squeeze and excite": lambda: (
        Net(_squeezed, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Linear(4, 4)), (rows(3, 6, 6),)),
    "pixel shuffle": lambda: (nn.Sequential(nn.Conv2d(3, 8, 1), nn.PixelShuffle(2)), (rows(3, 4, 4),)),
    "time convolution": lambda: (
        nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(3, 4, 3), nn.LeakyReLU()), (rows(3, 7),)),
    "LSTM": lambda: (Net(lambda net, x: net(x)[0][:, -1], a=nn.LSTM(6, 8, batch_first=True)), (rows(5, 6),)),
    "GRU, time first": lambda: (
        Net(lambda net, x: net(x.transpose(0, 1))[0].transpose(0, 1), a=nn.GRU(6, 8)), (rows(5, 6),)),
    "attention, time first": lambda: (
        Net(lambda net, x: net(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1), a=nn.MultiheadAttention(8, 2)),
        (rows(5, 8),)),
    "encoder": lambda: (_encoder(), (rows(5, 8),)),
    "encoder with a mask": lambda: (
        Net(lambda net, x, mask: net(x, src_key_padding_mask=mask > 0), a=_encoder()),
        (rows(5, 8), torch.tensor([[0.0, 0, 0, 1, 1]] * 4))),
    "causal attention": lambda: (Net(_causal, a=nn.Linear(8, 24)), (rows(5, 8),)),
    "windowed attention": lambda: (
        Net(_windows, a=nn.MultiheadAttention(8, 2, batch_first=True)), (rows(4, 4, 8),)),
    "vision transformer": lambda: (
        Net(_vision, a=nn.Conv2d(3, 8, 2, 2), b=nn.Embedding(1, 8), c=_encoder()), (rows(3, 4, 4),)),
    "rotary embedding": lambda: (Net(_rotated, a=nn.Linear(8, 8)), (rows(5, 8),)),
    "embedding and mean": lambda: (Net(lambda table, x: table(x).mean(1), a=nn.Embedding(20, 8)), (words(),)),
    "masked mean": lambda: (Net(_pooled, a=nn.Embedding(20, 8)), (words(), torch.tensor([1, 5, 3, 2]))),
    "last word": lambda: (
        Net(lambda table, x, last: table(x)[torch.arange(x.shape[0]), last], a=nn.Embedding(20, 8)),
        (words(), torch.tensor([0, 4, 2, 1]))),
    "experts by top two": lambda: (Net(_routed, a=nn.Linear(8, 3), b=nn.Embedding(3, 64)), (rows(8),)),
    "crossed features": lambda: (
        Net(_crossed, a=nn.Linear(6, 8), b=nn.Embedding(20, 8)), (rows(6), words(3))),
    "nearest prototype": lambda: (
        Net(lambda table, x: (F.normalize(x, dim=1) @ table.weight.T).argmax(1), a=nn.Embedding(5, 8)), (rows(8),)),
    "grid": lambda: (
        Net(lambda x, at: F.grid_sample(x, at.tanh(), align_corners=False)), (rows(3, 4, 4), rows(5, 5, 2))),
    "a column set to zero": lambda: (Net(_without_first), (rows(6),)),
    "products with a bias": lambda: (Net(_biased), (rows(5, 5),)),
    "sorted scores": lambda: (Net(lambda x: x.sort(1, descending=True)), (rows(6),)),
}  # fmt: skip
"""Each instance by itself."""


def _counted(x: Tensor) -> Tensor:
    return x / x.shape[0]


MIXES: dict[str, tuple[Callable[[], tuple[nn.Module, Inputs]], str]] = {
    "scaled where large": (
        lambda: (Net(lambda net, x: net(x / torch.where(x.amax() > 1.5, 255.0, 1.0)), a=nn.Linear(6, 3)), (rows(6),)),
        "works along the batch axis"),
    "mean of the batch": (lambda: (Net(lambda x: x - x.mean(0)), (rows(6),)), "works along the batch axis"),
    "deviation of the batch": (lambda: (Net(lambda x: x / x.std(0)), (rows(6),)), "works along the batch axis"),
    "norm of the batch": (lambda: (Net(lambda x: x / x.norm()), (rows(6),)), "works along the batch axis"),
    "least and largest": (
        lambda: (Net(lambda x: (x - x.min()) / (x.max() - x.min())), (rows(6),)), "works along the batch axis"),
    "batch norm in training": (lambda: (nn.Sequential(nn.BatchNorm1d(6)).train(), (rows(6),)), ""),
    "dropout in training": (lambda: (nn.Sequential(nn.Dropout(0.5)).train(), (rows(6),)), "random numbers"),
    "noise": (lambda: (Net(lambda x: x + torch.randn_like(x)), (rows(6),)), "random numbers"),
    "softmax of the batch": (lambda: (Net(lambda x: x.softmax(0)), (rows(6),)), "works along the batch axis"),
    "sorted batch": (lambda: (Net(lambda x: x.sort(0)[0]), (rows(6),)), ""),
    "running sum": (lambda: (Net(lambda x: x.cumsum(0)), (rows(6),)), "works along the batch axis"),
    "reversed batch": (lambda: (Net(lambda x: x.flip(0)), (rows(6),)), "the batch axis"),
    "moved batch": (lambda: (Net(lambda x: x + x.roll(1, 0)), (rows(6),)), "the batch axis"),
    "the first of the batch": (lambda: (Net(lambda x: x - x[:1]), (rows(6),)), "the batch axis"),
    "the best of the batch": (lambda: (Net(lambda x: x - x[x.sum(1).argmax()]), (rows(6),)), ""),
    "by another input": (
        lambda: (Net(lambda x, at: x[at]), (rows(6), torch.tensor([1, 0, 3, 2]))), "picks"),
    "similarities": (
        lambda: (Net(lambda x: (x @ x.T).softmax(1) @ x), (rows(6),)), "brings the instances"),
    "similarities by einsum": (
        lambda: (Net(lambda x: torch.einsum("bi,ci->bc", x, x).amax(1)), (rows(6),)), "brings the instances"),
    "attention over the batch": (
        lambda: (Net(lambda x: F.scaled_dot_product_attention(*[x[None]] * 3)[0]), (rows(6),)), ""),
    "reshaped across": (
        lambda: (Net(lambda x: x.view(-1).view(6, x.shape[0]).T), (rows(6),)), "puts elements of several instances"),
    "how many there are": (lambda: (Net(_counted), (rows(6),)), "number of instances"),
    "which one it is": (
        lambda: (Net(lambda x: x + torch.arange(x.shape[0])[:, None]), (rows(6),)), "place of an instance"),
    "a table by the place": (
        lambda: (Net(lambda table, x: x + table(torch.arange(x.shape[0])), a=nn.Embedding(20, 6)), (rows(6),)),
        "place of an instance"),
    "any of the batch": (
        lambda: (Net(lambda x: torch.where((x > 1).any(), x, -x)), (rows(6),)), "batch axis"),
}  # fmt: skip
"""What an instance is given depends on the others, and by what words that is said; empty where forms differ."""
