"""Calls that are made whole or in parts of the rows, as memory is saved; and products of other factors in one place."""

from __future__ import annotations

import torch
from equal_forms import TIME, EqualForms, Written, as_heads
from torch import Tensor
from torch.nn import functional

from lockstep.core.site import Phase


def _by_chunks(m: Written, x: Tensor, *, last: float = 1.0, rows: int = 2) -> Tensor:
    done = [functional.gelu(m.layer(part)) for part in x.split(rows, 1)]
    return torch.cat([*done[:-1], done[-1] * last], 1)


def _scores(m: Written, x: Tensor) -> tuple[Tensor, Tensor]:
    return m.layer(x).flatten(0, 1), m.ids[:, :TIME].flatten()


def _loss_by_chunks(m: Written, x: Tensor, reduction: str, *, lost: int = -1) -> Tensor:
    rows = x.flatten(0, 1).split(7)
    labels = m.ids[:, :TIME].flatten().split(7)
    parts = [
        functional.cross_entropy(m.layer(row), label, reduction=reduction)
        for row, label in zip(rows, labels, strict=True)
    ]
    parts = [part.detach() if number == lost else part for number, part in enumerate(parts)]
    together = torch.stack(parts)
    return together.sum() / (4 * TIME) if reduction == "sum" else together.mean()


def _attended(x: Tensor) -> Tensor:
    heads = as_heads(x)
    return (heads @ heads.transpose(-1, -2) * 0.5).softmax(-1) @ heads


def _by_heads(x: Tensor, *, last: float = 0.5) -> Tensor:
    heads = as_heads(x).unbind(1)
    return torch.stack(
        [
            (one @ one.transpose(-1, -2) * scale).softmax(-1) @ one
            for one, scale in zip(heads, (0.5, last), strict=True)
        ],
        1,
    )


def _turned(x: Tensor, more: int = 0) -> Tensor:
    """Pairs of channels turned by the place in time, by parts."""
    angle = torch.arange(TIME)[:, None] + more + torch.arange(4.0)
    left, right = x[..., ::2], x[..., 1::2]
    turned = left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()
    return torch.stack(turned, -1).flatten(-2)


def _turned_at_once(x: Tensor) -> Tensor:
    angle = torch.arange(TIME)[:, None] + torch.arange(4.0)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def _quantile(m: Written, x: Tensor) -> tuple[Tensor, Tensor]:
    return m.bias.detach().sigmoid(), x.roll(1, 1).detach() - x


def _by_relu(share: Tensor, error: Tensor, less: float = 1.0) -> Tensor:
    return (functional.relu(error) * share + functional.relu(-error) * (less - share)).mean()


IN_PARTS: dict[str, EqualForms] = {
    "a layer in chunks": EqualForms(
        lambda m, x: functional.gelu(m.layer(x)),
        _by_chunks,
        lambda m, x: _by_chunks(m, x, last=1.01),
    ),
    "a layer in chunks of other sizes": EqualForms(
        _by_chunks,
        lambda m, x: _by_chunks(m, x, rows=4),
        lambda m, x: _by_chunks(m, x, last=0.99, rows=4),
    ),
    "a loss in chunks": EqualForms(
        lambda m, x: functional.cross_entropy(*_scores(m, x)),
        lambda m, x: _loss_by_chunks(m, x, "sum"),
        lambda m, x: _loss_by_chunks(m, x, "mean"),
    ),
    "a loss in chunks, one gradient lost": EqualForms(
        lambda m, x: functional.cross_entropy(*_scores(m, x)),
        lambda m, x: _loss_by_chunks(m, x, "sum"),
        lambda m, x: _loss_by_chunks(m, x, "sum", lost=1),
        (Phase.FORWARD, Phase.BACKWARD),
    ),
    "attention head by head": EqualForms(
        lambda m, x: _attended(x), lambda m, x: _by_heads(x), lambda m, x: _by_heads(x, last=0.49)
    ),
    "a rotation as a complex product": EqualForms(
        lambda m, x: _turned(x), lambda m, x: _turned_at_once(x), lambda m, x: _turned(x, 1)
    ),
    "a layer of its own written out": EqualForms(
        lambda m, x: functional.gelu(m.layer(x)),
        lambda m, x: functional.gelu(x @ m.layer.weight.T + m.layer.bias),
        lambda m, x: functional.gelu(x @ m.layer.weight.T + 1.01 * m.layer.bias),
    ),
    "a loss of quantiles": EqualForms(
        lambda m, x: torch.maximum(
            _quantile(m, x)[0] * _quantile(m, x)[1], (_quantile(m, x)[0] - 1) * _quantile(m, x)[1]
        ).mean(),
        lambda m, x: _by_relu(*_quantile(m, x)),
        lambda m, x: _by_relu(*_quantile(m, x), less=1.01),
    ),
}
