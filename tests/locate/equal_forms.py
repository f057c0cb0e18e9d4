"""Pairs of calls that compute the same, each with a mistake that looks like them, and a small training around one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.core.site import Phase

ROWS, TIME, WIDTH = 4, 6, 8
WORDS = 9


class Written(nn.Module):
    """What a form computes with: a matrix, a vector, whole numbers that choose, and a mask."""

    weight: nn.Parameter
    bias: nn.Parameter
    table: nn.Parameter
    ids: Tensor
    rows: Tensor
    mask: Tensor

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.bias = nn.Parameter(torch.randn(WIDTH) / 3)
        self.table = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("ids", torch.randint(WIDTH, (ROWS, TIME + 1)))
        self.register_buffer("rows", torch.tensor([4, 1, 3]))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, False]))
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self, x)


Form = Callable[[Written, Tensor], Tensor]


class Net(nn.Module):
    """A linear layer, and a form of its output."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.enter, self.written = nn.Linear(5, WIDTH), Written(form)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.written(self.enter(x))
        return out


@dataclass(frozen=True)
class EqualForms:
    """Two ways to write one thing, a mistake that looks like the second, and the passes in which that may show."""

    one: Form
    other: Form
    mistake: Form
    phases: tuple[Phase, ...] = (Phase.FORWARD,)


STEPS = 2


def train(form: Form, *, dtype: torch.dtype = torch.float32, in_script: bool = False) -> None:
    """Train with a form for its activations, or for its loss where it gives a number; whoever calls records.

    With `in_script` the form is computed in the training loop, else in a module.
    """
    torch.manual_seed(0)
    model = Net(form).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        batch = torch.randn(ROWS, TIME, 5, generator=generator).to(dtype)
        out = form(model.written, model.enter(batch)) if in_script else model(batch)
        loss = out
        if out.dim():
            wanted = torch.randn(out.numel(), generator=generator).to(out.dtype)
            loss = functional.mse_loss(out, wanted.view(out.shape))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def as_heads(x: Tensor) -> Tensor:
    return x.view(ROWS, TIME, 2, 4).transpose(1, 2)


def _places(m: Written, more: int = 0) -> Tensor:
    """Places in time, a column for each channel."""
    return ((m.ids[:, :3, None] + more) % TIME).expand(ROWS, 3, WIDTH)


VIEWS: dict[str, EqualForms] = {
    "a new axis by None": EqualForms(
        lambda m, x: x[:, 1:, None],
        lambda m, x: x[:, 1:].unsqueeze(2),
        lambda m, x: x[:, :-1].unsqueeze(2),
    ),
    "a new axis by None in an index": EqualForms(
        lambda m, x: x.log_softmax(-1).gather(-1, m.ids[:, 1:, None]),
        lambda m, x: x.log_softmax(-1).gather(-1, m.ids[:, 1:].unsqueeze(-1)),
        lambda m, x: x.log_softmax(-1).gather(-1, m.ids[:, :-1].unsqueeze(-1)),
    ),
    "an axis taken away again": EqualForms(
        lambda m, x: x[:, None, 1:].squeeze(1),
        lambda m, x: x[:, 1:],
        lambda m, x: x[:, :-1],
    ),
    "narrow": EqualForms(
        lambda m, x: x.narrow(1, 1, 3), lambda m, x: x[:, 1:4], lambda m, x: x[:, 2:5]
    ),
    "select": EqualForms(lambda m, x: x.select(1, 2), lambda m, x: x[:, 2], lambda m, x: x[:, 3]),
    "an index from the end": EqualForms(
        lambda m, x: x[:, -1], lambda m, x: x[:, TIME - 1], lambda m, x: x[:, TIME - 2]
    ),
    "a slice from the end": EqualForms(
        lambda m, x: x[:, -2:], lambda m, x: x[:, TIME - 2 :], lambda m, x: x[:, :2]
    ),
    "an index beside a slice": EqualForms(
        lambda m, x: x[:, 2], lambda m, x: x[:, 2:3].squeeze(1), lambda m, x: x[:, 3:4].squeeze(1)
    ),
    "a slice that keeps its axis": EqualForms(
        lambda m, x: x[:, 2:3], lambda m, x: x[:, 2, None], lambda m, x: x[:, 3, None]
    ),
    "an ellipsis": EqualForms(
        lambda m, x: x[..., 1:4], lambda m, x: x[:, :, 1:4], lambda m, x: x[:, :, 2:5]
    ),
    "every second one": EqualForms(
        lambda m, x: x[:, ::2],
        lambda m, x: x.index_select(1, torch.tensor([0, 2, 4])),
        lambda m, x: x.index_select(1, torch.tensor([1, 3, 5])),
    ),
    "a mask": EqualForms(
        lambda m, x: x[:, m.mask],
        lambda m, x: x[:, m.mask.nonzero().squeeze(1)],
        lambda m, x: x[:, ~m.mask],
    ),
    "masked_select": EqualForms(
        lambda m, x: x.masked_select(m.mask[:, None]),
        lambda m, x: x[:, m.mask].flatten(),
        lambda m, x: x[:, ~m.mask].flatten(),
    ),
    "index tensors": EqualForms(
        lambda m, x: x[:, m.rows],
        lambda m, x: x.index_select(1, m.rows),
        lambda m, x: x.index_select(1, m.rows.flip(0)),
    ),
    "index tensors as slices": EqualForms(
        lambda m, x: x[:, m.rows],
        lambda m, x: torch.stack((x[:, 4], x[:, 1], x[:, 3]), 1),
        lambda m, x: torch.stack((x[:, 4], x[:, 2], x[:, 3]), 1),
    ),
    "gather": EqualForms(
        lambda m, x: x.gather(1, _places(m)),
        lambda m, x: torch.take_along_dim(x, _places(m), 1),
        lambda m, x: torch.take_along_dim(x, _places(m, 1), 1),
    ),
    "gather by index": EqualForms(
        lambda m, x: x.gather(1, _places(m)),
        lambda m, x: x[torch.arange(ROWS)[:, None], _places(m)[:, :, 0]],
        lambda m, x: x[torch.arange(ROWS)[:, None], _places(m, 1)[:, :, 0]],
    ),
    "take": EqualForms(
        lambda m, x: x.take(m.ids * 5),
        lambda m, x: x.flatten()[m.ids * 5],
        lambda m, x: x.flatten()[m.ids * 5 + 1],
    ),
    "flatten": EqualForms(
        lambda m, x: x.view(ROWS, TIME * WIDTH),
        lambda m, x: x.flatten(1),
        lambda m, x: x.transpose(1, 2).flatten(1),
    ),
    "unflatten": EqualForms(
        lambda m, x: x.unflatten(2, (2, 4)),
        lambda m, x: x.reshape(ROWS, TIME, 2, 4),
        lambda m, x: x.reshape(ROWS, TIME, 4, 2).transpose(2, 3),
    ),
    "another shape on the way": EqualForms(
        lambda m, x: x.view(ROWS * TIME, WIDTH).tanh().view(ROWS, TIME, WIDTH),
        lambda m, x: x.view(ROWS, TIME * WIDTH).tanh().view(ROWS, TIME, WIDTH),
        lambda m, x: x.view(ROWS, WIDTH, TIME).tanh().transpose(1, 2),
    ),
    "flattened before a layer": EqualForms(
        lambda m, x: functional.linear(x.reshape(-1, WIDTH), m.weight).view(ROWS, TIME, WIDTH),
        lambda m, x: functional.linear(x, m.weight),
        lambda m, x: (
            functional.linear(x.reshape(-1, WIDTH), m.weight)
            .view(TIME, ROWS, WIDTH)
            .transpose(0, 1)
        ),
    ),
    "flattened before a module": EqualForms(
        lambda m, x: m.layer(x.reshape(-1, WIDTH)).view(ROWS, TIME, WIDTH),
        lambda m, x: m.layer(x),
        lambda m, x: m.layer(x.mT.reshape(-1, WIDTH)).view(ROWS, TIME, WIDTH),
    ),
    "a row for a column": EqualForms(
        lambda m, x: x[:, :, 0] - x[:, :1, 1].squeeze(1)[:, None],
        lambda m, x: x[:, :, 0] - x[:, :1, 1],
        lambda m, x: x[:, :4, 0] - x[:, :1, 1].squeeze(1),
    ),
    "a target's last axis": EqualForms(
        lambda m, x: functional.smooth_l1_loss(x[..., :1].squeeze(-1), m.ids[:, 1:].to(x.dtype)),
        lambda m, x: functional.smooth_l1_loss(x[..., 0], m.ids[:, 1:].to(x.dtype)),
        lambda m, x: functional.smooth_l1_loss(
            x[..., :1].expand(ROWS, TIME, TIME),
            m.ids[:, 1:, None].to(x.dtype).mT.expand(-1, TIME, -1),
        ),
    ),
    "a new axis at its place": EqualForms(
        lambda m, x: x.mean(1)[:, None] * x,
        lambda m, x: x.mean(1).unsqueeze(1) * x,
        lambda m, x: x[:, :4].mean(2)[:, :, None] * x[:, :4],
    ),
    "heads": EqualForms(
        lambda m, x: as_heads(x),
        lambda m, x: x.view(ROWS, TIME, 2, 4).permute(0, 2, 1, 3),
        lambda m, x: x.view(ROWS, 2, TIME, 4),
    ),
    "heads put together": EqualForms(
        lambda m, x: as_heads(x).tanh().transpose(1, 2).reshape(ROWS, TIME, WIDTH),
        lambda m, x: torch.cat(as_heads(x).tanh().unbind(1), -1),
        lambda m, x: torch.cat(as_heads(x).tanh().unbind(1)[::-1], -1),
    ),
    "moved axes": EqualForms(
        lambda m, x: x.movedim(1, 2),
        lambda m, x: x.transpose(1, 2),
        lambda m, x: x.view(ROWS, 8, 6),
    ),
    "permuted batch": EqualForms(
        lambda m, x: x.permute(1, 0, 2).contiguous().view(-1, WIDTH),
        lambda m, x: x.transpose(0, 1).flatten(0, 1),
        lambda m, x: x.flatten(0, 1),
    ),
    "a transposed matrix": EqualForms(
        lambda m, x: x @ m.weight.T,
        lambda m, x: x @ m.weight.transpose(0, 1),
        lambda m, x: x @ m.weight,
    ),
    "a transposed product": EqualForms(
        lambda m, x: x @ x.mT, lambda m, x: x @ x.permute(0, 2, 1), lambda m, x: x @ x.flip(1).mT
    ),
    "chunk": EqualForms(
        lambda m, x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1].tanh(),
        lambda m, x: x.split(4, -1)[0] * x.split(4, -1)[1].tanh(),
        lambda m, x: x.split(4, -1)[1] * x.split(4, -1)[0].tanh(),
    ),
    "chunk by slices": EqualForms(
        lambda m, x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1].tanh(),
        lambda m, x: x[..., :4] * x[..., 4:].tanh(),
        lambda m, x: x[..., ::2] * x[..., 1::2].tanh(),
    ),
    "tensor_split": EqualForms(
        lambda m, x: torch.cat([part.tanh() for part in x.tensor_split((2, 5), 1)], 1),
        lambda m, x: torch.cat([part.tanh() for part in x.split((2, 3, 1), 1)], 1),
        lambda m, x: torch.cat([part.tanh() for part in x.split((2, 3, 1), 1)][::-1], 1),
    ),
    "unbind": EqualForms(
        lambda m, x: torch.stack(x.unbind(1), 2),
        lambda m, x: x.transpose(1, 2),
        lambda m, x: x.flip(1).transpose(1, 2),
    ),
    "stack": EqualForms(
        lambda m, x: torch.stack((x, x.tanh()), 1),
        lambda m, x: torch.cat((x.unsqueeze(1), x.tanh().unsqueeze(1)), 1),
        lambda m, x: torch.cat((x.tanh().unsqueeze(1), x.unsqueeze(1)), 1),
    ),
    "put together again": EqualForms(
        lambda m, x: x * 1.5,
        lambda m, x: torch.cat((x[:, :3], x[:, 3:]), 1) * 1.5,
        lambda m, x: torch.cat((x[:, 3:], x[:, :3]), 1) * 1.5,
    ),
    "expand": EqualForms(
        lambda m, x: m.bias.expand(ROWS, TIME, WIDTH) * x,
        lambda m, x: m.bias.repeat(ROWS, TIME, 1) * x,
        lambda m, x: m.bias.flip(0).repeat(ROWS, TIME, 1) * x,
    ),
    "expand by index": EqualForms(
        lambda m, x: m.bias[None, None].expand_as(x) * x,
        lambda m, x: m.bias * x,
        lambda m, x: m.bias.flip(0) * x,
    ),
    "broadcast_to": EqualForms(
        lambda m, x: torch.broadcast_to(x[:, :1], x.shape) + x.tanh(),
        lambda m, x: x[:, :1] + x.tanh(),
        lambda m, x: x[:, 1:2] + x.tanh(),
    ),
    "a copy in between": EqualForms(
        lambda m, x: x.transpose(1, 2).tanh(),
        lambda m, x: x.transpose(1, 2).contiguous().clone().tanh(),
        lambda m, x: x.transpose(1, 2).flip(2).contiguous().clone().tanh(),
    ),
    "masked_fill": EqualForms(
        lambda m, x: x.masked_fill(m.mask[:, None], 0.0).tanh(),
        lambda m, x: torch.where(m.mask[:, None], 0.0, x).tanh(),
        lambda m, x: torch.where(m.mask[:, None], x, 0.0).tanh(),
    ),
    "masked by a product": EqualForms(
        lambda m, x: x.masked_fill(~m.mask[:, None], 0.0),
        lambda m, x: x * m.mask[:, None],
        lambda m, x: x * ~m.mask[:, None],
    ),
    "embedding by one-hot": EqualForms(
        lambda m, x: functional.embedding(m.ids[:, 1:], m.table) * x,
        lambda m, x: functional.one_hot(m.ids[:, 1:], WORDS).to(x.dtype) @ m.table * x,
        lambda m, x: functional.one_hot(m.ids[:, :-1], WORDS).to(x.dtype) @ m.table * x,
    ),
    "embedding by index": EqualForms(
        lambda m, x: functional.embedding(m.ids[:, 1:], m.table) * x,
        lambda m, x: m.table[m.ids[:, 1:]] * x,
        lambda m, x: m.table[m.ids[:, :-1]] * x,
    ),
    "a chain as einops makes": EqualForms(
        lambda m, x: x.view(ROWS, 2, 3, WIDTH).permute(0, 2, 1, 3).reshape(ROWS, TIME, WIDTH),
        lambda m, x: x.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2),
        lambda m, x: x.unflatten(1, (3, 2)).transpose(1, 2).flatten(1, 2),
    ),
    "shifted": EqualForms(
        lambda m, x: functional.pad(x[:, :-1], (0, 0, 1, 0)),
        lambda m, x: torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1),
        lambda m, x: torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1),
    ),
    "rolled": EqualForms(
        lambda m, x: x.roll(1, 1),
        lambda m, x: torch.cat((x[:, -1:], x[:, :-1]), 1),
        lambda m, x: torch.cat((x[:, 1:], x[:, :1]), 1),
    ),
    "flipped": EqualForms(
        lambda m, x: x.flip(1),
        lambda m, x: x[:, torch.arange(TIME - 1, -1, -1)],
        lambda m, x: x[:, torch.arange(TIME - 2, -2, -1)],
    ),
    "repeat_interleave": EqualForms(
        lambda m, x: x.repeat_interleave(2, 1),
        lambda m, x: x[:, :, None].expand(-1, -1, 2, -1).reshape(ROWS, 2 * TIME, WIDTH),
        lambda m, x: x[:, None].expand(-1, 2, -1, -1).reshape(ROWS, 2 * TIME, WIDTH),
    ),
    "a triangle": EqualForms(
        lambda m, x: (x @ x.mT).tril(),
        lambda m, x: (x @ x.mT).masked_fill(torch.ones(TIME, TIME).triu(1).bool(), 0.0),
        lambda m, x: (x @ x.mT).masked_fill(torch.ones(TIME, TIME).triu(0).bool(), 0.0),
    ),
    "written by slices": EqualForms(
        lambda m, x: torch.cat((x[:, :2].tanh(), x[:, 2:]), 1),
        lambda m, x: _with_slice(x, 2),
        lambda m, x: _with_slice(x, 3),
    ),
}


def _with_slice(x: Tensor, until: int) -> Tensor:
    out = x.clone()
    out[:, :until] = x[:, :until].tanh()
    return out


def _variance(x: Tensor, *, unbiased: bool = False) -> Tensor:
    return x.var(-1, keepdim=True, unbiased=unbiased)


def _layer_norm(m: Written, x: Tensor, *, unbiased: bool = False) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (_variance(x, unbiased=unbiased) + 1e-5).sqrt() * m.bias + m.table[0]


def _rms_norm(m: Written, x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * m.bias


def _attention(x: Tensor, scale: float) -> Tensor:
    q = as_heads(x)
    scores = q @ q.transpose(-2, -1) * scale
    mask = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, -math.inf).softmax(-1) @ q


def _labels(m: Written, x: Tensor) -> Tensor:
    return (m.ids[:, 1:, None] > torch.arange(WIDTH)).to(x.dtype)


PARTS: dict[str, EqualForms] = {
    "cross entropy by gather": EqualForms(
        lambda m, x: -x.log_softmax(-1).gather(-1, m.ids[:, 1:, None]).squeeze(-1).mean(),
        lambda m, x: functional.cross_entropy(x.transpose(1, 2), m.ids[:, 1:]),
        lambda m, x: functional.cross_entropy(x.transpose(1, 2), m.ids[:, :-1]),
    ),
    "cross entropy of each, by gather": EqualForms(
        lambda m, x: x.log_softmax(-1).gather(-1, m.ids[:, 1:, None]).squeeze(-1).exp().mean(),
        lambda m, x: (-functional.cross_entropy(x.mT, m.ids[:, 1:], reduction="none")).exp().mean(),
        lambda m, x: (
            (-functional.cross_entropy(x.mT, m.ids[:, :-1], reduction="none")).exp().mean()
        ),
    ),
    "cross entropy by nll_loss": EqualForms(
        lambda m, x: functional.cross_entropy(x.flatten(0, 1), m.ids[:, 1:].flatten()),
        lambda m, x: functional.nll_loss(x.log_softmax(-1).mT, m.ids[:, 1:]),
        lambda m, x: functional.nll_loss(x.log_softmax(1).mT, m.ids[:, 1:]),
    ),
    "softmax": EqualForms(
        lambda m, x: x.softmax(-1),
        lambda m, x: (
            (x - x.amax(-1, keepdim=True)).exp()
            / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
        ),
        lambda m, x: (
            (x - x.amax(-1, keepdim=True)).exp()
            / (x - x.amax(-1, keepdim=True)).exp().sum(1, keepdim=True)
        ),
    ),
    "log_softmax": EqualForms(
        lambda m, x: x.log_softmax(-1),
        lambda m, x: x - x.logsumexp(-1, keepdim=True),
        lambda m, x: x - x.logsumexp(1, keepdim=True),
    ),
    "layer norm": EqualForms(
        lambda m, x: functional.layer_norm(x, (WIDTH,), m.bias, m.table[0]),
        lambda m, x: _layer_norm(m, x),
        lambda m, x: _layer_norm(m, x, unbiased=True),
    ),
    "RMS norm": EqualForms(
        lambda m, x: functional.rms_norm(x, (WIDTH,), m.bias, 1e-6),
        lambda m, x: _rms_norm(m, x),
        lambda m, x: _rms_norm(m, x, 1e-2),
    ),
    "group norm": EqualForms(
        lambda m, x: functional.group_norm(x.mT, 2),
        lambda m, x: functional.layer_norm(x.mT.reshape(ROWS, 2, -1), (24,)).view(ROWS, 8, 6),
        lambda m, x: functional.layer_norm(x.mT.reshape(ROWS, 4, -1), (12,)).view(ROWS, 8, 6),
    ),
    "GELU": EqualForms(
        lambda m, x: functional.gelu(x),
        lambda m, x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        lambda m, x: 0.5 * x * (1 + torch.erf(x / 2)),
    ),
    "SiLU": EqualForms(
        lambda m, x: functional.silu(x),
        lambda m, x: x * torch.sigmoid(x),
        lambda m, x: x * torch.sigmoid(-x),
    ),
    "SiLU by parts": EqualForms(
        lambda m, x: functional.silu(x),
        lambda m, x: x / (1 + torch.exp(-x)),
        lambda m, x: x / (1 + torch.exp(x)),
    ),
    "GLU": EqualForms(
        lambda m, x: functional.glu(x, -1),
        lambda m, x: x[..., :4] * x[..., 4:].sigmoid(),
        lambda m, x: x[..., 4:] * x[..., :4].sigmoid(),
    ),
    "softplus": EqualForms(
        lambda m, x: functional.softplus(x),
        lambda m, x: torch.log1p(torch.exp(x)),
        lambda m, x: torch.log1p(torch.exp(-x)),
    ),
    "ReLU": EqualForms(
        lambda m, x: functional.relu(x),
        lambda m, x: x.clamp(min=0),
        lambda m, x: x.clamp(max=0),
    ),
    "leaky ReLU": EqualForms(
        lambda m, x: functional.leaky_relu(x, 0.1),
        lambda m, x: torch.where(x > 0, x, 0.1 * x),
        lambda m, x: torch.where(x > 0, 0.1 * x, x),
    ),
    "attention": EqualForms(
        lambda m, x: functional.scaled_dot_product_attention(*[as_heads(x)] * 3, is_causal=True),
        lambda m, x: _attention(x, 0.5),
        lambda m, x: _attention(x, 1.0),
    ),
    "BCE with logits": EqualForms(
        lambda m, x: functional.binary_cross_entropy_with_logits(x, _labels(m, x)),
        lambda m, x: (x.clamp(min=0) - x * _labels(m, x) + torch.log1p((-x.abs()).exp())).mean(),
        lambda m, x: (x.clamp(min=0) + x * _labels(m, x) + torch.log1p((-x.abs()).exp())).mean(),
    ),
    "mean squared error": EqualForms(
        lambda m, x: functional.mse_loss(x, m.table[m.ids[:, 1:]]),
        lambda m, x: (x - m.table[m.ids[:, 1:]]).pow(2).mean(),
        lambda m, x: (x + m.table[m.ids[:, 1:]]).pow(2).mean(),
    ),
    "KL divergence": EqualForms(
        lambda m, x: functional.kl_div(
            x.log_softmax(-1), m.table[m.ids[:, 1:]].softmax(-1), reduction="batchmean"
        ),
        lambda m, x: (
            (
                m.table[m.ids[:, 1:]].softmax(-1)
                * (m.table[m.ids[:, 1:]].log_softmax(-1) - x.log_softmax(-1))
            ).sum()
            / ROWS
        ),
        lambda m, x: (
            (
                m.table[m.ids[:, 1:]].softmax(-1)
                * (m.table[m.ids[:, 1:]].log_softmax(-1) + x.log_softmax(-1))
            ).sum()
            / ROWS
        ),
    ),
    "linear": EqualForms(
        lambda m, x: functional.linear(x, m.weight, m.bias),
        lambda m, x: x @ m.weight.T + m.bias,
        lambda m, x: x @ m.weight.T - m.bias,
    ),
    "addmm": EqualForms(
        lambda m, x: functional.linear(x, m.weight, m.bias).flatten(0, 1),
        lambda m, x: torch.addmm(m.bias, x.flatten(0, 1), m.weight.T),
        lambda m, x: torch.addmm(m.bias, x.flatten(0, 1), m.weight),
    ),
    "einsum": EqualForms(
        lambda m, x: torch.bmm(x, x.transpose(1, 2)),
        lambda m, x: torch.einsum("btc,bsc->bts", x, x),
        lambda m, x: torch.einsum("btc,bsc->bts", x, x.flip(1)),
    ),
    "convolution of extent 1": EqualForms(
        lambda m, x: functional.conv1d(x.mT, m.weight[..., None], m.bias).mT,
        lambda m, x: functional.linear(x, m.weight, m.bias),
        lambda m, x: functional.linear(x, m.weight.T, m.bias),
    ),
    "no dropout": EqualForms(
        lambda m, x: functional.dropout(x, 0.0).tanh(),
        lambda m, x: x.tanh(),
        lambda m, x: functional.dropout(x, 0.3).tanh(),
    ),
    "mean by sum": EqualForms(
        lambda m, x: x.mean(1), lambda m, x: x.sum(1) / TIME, lambda m, x: x.sum(1) / (TIME - 1)
    ),
    "mean in two parts": EqualForms(
        lambda m, x: x.tanh().mean(1),
        lambda m, x: (x.tanh()[:, :3].mean(1) + x.tanh()[:, 3:].mean(1)) / 2,
        lambda m, x: (x.tanh()[:, :2].mean(1) + x.tanh()[:, 2:].mean(1)) / 2,
    ),
    "mean over two axes": EqualForms(
        lambda m, x: x.mean((1, 2)),
        lambda m, x: x.mean(2).mean(1),
        lambda m, x: x.amax(2).mean(1),
    ),
    "square": EqualForms(lambda m, x: x.pow(2), lambda m, x: x * x, lambda m, x: x * x.abs()),
    "reciprocal root": EqualForms(
        lambda m, x: torch.rsqrt(x.abs() + 0.1),
        lambda m, x: 1 / torch.sqrt(x.abs() + 0.1),
        lambda m, x: 1 / torch.sqrt(x.abs() + 0.2),
    ),
    "standard deviation": EqualForms(
        lambda m, x: x.std(-1),
        lambda m, x: ((x - x.mean(-1, keepdim=True)).square().sum(-1) / (WIDTH - 1)).sqrt(),
        lambda m, x: ((x - x.mean(-1, keepdim=True)).square().sum(-1) / WIDTH).sqrt(),
    ),
    "a norm": EqualForms(
        lambda m, x: functional.normalize(x, dim=-1),
        lambda m, x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12),
        lambda m, x: x / x.norm(dim=1, keepdim=True).clamp_min(1e-12),
    ),
    "cosine similarity": EqualForms(
        lambda m, x: functional.cosine_similarity(x, m.bias, dim=-1),
        lambda m, x: (functional.normalize(x, dim=-1) * functional.normalize(m.bias, dim=0)).sum(
            -1
        ),
        lambda m, x: (functional.normalize(x, dim=1) * functional.normalize(m.bias, dim=0)).sum(-1),
    ),
    "a quotient": EqualForms(lambda m, x: x / 4, lambda m, x: x * 0.25, lambda m, x: x * 0.2),
    "a sign": EqualForms(
        lambda m, x: x.tanh() - m.bias,
        lambda m, x: x.tanh() + -m.bias,
        lambda m, x: x.tanh() + m.bias,
    ),
    "between two": EqualForms(
        lambda m, x: torch.lerp(x, m.bias.expand_as(x), 0.25),
        lambda m, x: x * 0.75 + m.bias * 0.25,
        lambda m, x: x * 0.25 + m.bias * 0.75,
    ),
    "one product for three": EqualForms(
        lambda m, x: torch.cat([functional.linear(x, one) for one in m.weight.chunk(2)], -1).tanh(),
        lambda m, x: functional.linear(x, m.weight).tanh(),
        lambda m, x: functional.linear(x, m.weight.flip(0)).tanh(),
    ),
}


def all_forms() -> Iterable[tuple[str, EqualForms]]:
    """Every pair, by its name."""
    return (VIEWS | PARTS).items()
