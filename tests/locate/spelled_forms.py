"""Calls of one operator in two spellings, each with a mistake that looks like the second: another setting."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from equal_forms import ROWS, TIME, WIDTH, WORDS, EqualForms, Written
from torch import Tensor
from torch.nn import functional


def _scores(x: Tensor) -> Tensor:
    return x @ x.transpose(1, 2)


def _places(m: Written) -> Tensor:
    return (m.ids[:, :3, None] % TIME).expand(ROWS, 3, 3)


SPELLINGS: dict[str, EqualForms] = {
    "a diagonal by default": EqualForms(
        lambda m, x: _scores(x).tril(),
        lambda m, x: torch.tril(_scores(x), diagonal=0),
        lambda m, x: torch.tril(_scores(x), diagonal=1),
    ),
    "a mask's diagonal by default": EqualForms(
        lambda m, x: _scores(x) * torch.ones(TIME, TIME, dtype=torch.bool).tril(),
        lambda m, x: _scores(x) * torch.ones(TIME, TIME, dtype=torch.bool).tril(0),
        lambda m, x: _scores(x) * torch.ones(TIME, TIME, dtype=torch.bool).tril(1),
    ),
    "softmax of a tensor": EqualForms(
        lambda m, x: x.softmax(1),
        lambda m, x: functional.softmax(x, dim=1),
        lambda m, x: functional.softmax(x, dim=2),
    ),
    "a running sum": EqualForms(
        lambda m, x: x.cumsum(1),
        lambda m, x: torch.cumsum(x, dim=1),
        lambda m, x: torch.cumsum(x, dim=2),
    ),
    "rolled by name": EqualForms(
        lambda m, x: x.roll(1, 1),
        lambda m, x: torch.roll(x, shifts=1, dims=1),
        lambda m, x: torch.roll(x, shifts=2, dims=1),
    ),
    "gather with the index by name": EqualForms(
        lambda m, x: x.gather(1, _places(m)),
        lambda m, x: torch.gather(x, 1, index=_places(m)),
        lambda m, x: torch.gather(x, 2, index=_places(m)),
    ),
    "a sum with a factor": EqualForms(
        lambda m, x: torch.add(x, m.bias),
        lambda m, x: x.add(m.bias, alpha=1),
        lambda m, x: x.add(m.bias, alpha=2),
    ),
    "clamped on one side": EqualForms(
        lambda m, x: x.clamp(-0.5),
        lambda m, x: x.clamp(-0.5, None),
        lambda m, x: x.clamp(-0.5, 0.5),
    ),
    "softplus by default": EqualForms(
        lambda m, x: functional.softplus(x),
        lambda m, x: functional.softplus(x, 1),
        lambda m, x: functional.softplus(x, 2),
    ),
    "variance": EqualForms(
        lambda m, x: x.var(-1),
        lambda m, x: torch.var(x, -1, unbiased=True),
        lambda m, x: torch.var(x, -1, unbiased=False),
    ),
    "filled by name": EqualForms(
        lambda m, x: x.masked_fill(m.mask[:, None], 0),
        lambda m, x: torch.masked_fill(x, m.mask[:, None], 0),
        lambda m, x: torch.masked_fill(x, m.mask[:, None], -1),
    ),
    "a number times": EqualForms(
        lambda m, x: x * 2, lambda m, x: torch.mul(x, 2), lambda m, x: torch.mul(x, 2.1)
    ),
    "a difference the other way round": EqualForms(
        lambda m, x: 1 - x, lambda m, x: torch.rsub(x, 1), lambda m, x: x - 1
    ),
    "sorted upwards": EqualForms(
        lambda m, x: x.sort(-1)[0],
        lambda m, x: torch.sort(x, dim=-1)[0],
        lambda m, x: torch.sort(x, dim=-1, descending=True)[0],
    ),
    "a comparison": EqualForms(
        lambda m, x: x * (x > 0), lambda m, x: x * torch.gt(x, 0), lambda m, x: x * torch.gt(x, 0.3)
    ),
    "a convolution's padding": EqualForms(
        lambda m, x: functional.conv1d(x, _kernel(m), None, 1, 1),
        lambda m, x: functional.conv1d(x, _kernel(m), padding=1),
        lambda m, x: functional.conv1d(x, _kernel(m), None, 1, 2, 2),
    ),
}
"""Every pair, by its name."""


def _added(m: Written, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of zeros, places among them of which some occur twice, and what is added there."""
    return torch.zeros(WORDS, WIDTH), m.ids[0, :TIME], x[0]


def _put(m: Written, x: Tensor, *, accumulate: bool) -> Tensor:
    zeros, places, values = _added(m, x)
    return zeros.index_put((places,), values, accumulate=accumulate)


def _scattered(m: Written, x: Tensor, more: int = 0) -> Tensor:
    zeros, places, values = _added(m, x)
    return zeros.scatter_add(0, (places + more)[:, None].expand_as(values) % WORDS, values)


def _masked(mask: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Attention whose scores a mask is applied to."""
    return mask(_scores(x)).softmax(-1) @ x


def _infinite(diagonal: int, number: float = -math.inf) -> Tensor:
    return torch.full((TIME, TIME), number).triu(diagonal)


def _later(diagonal: int) -> Tensor:
    """Ones above a diagonal."""
    return torch.ones(TIME, TIME).triu(diagonal)


def _attended(x: Tensor, mask: Tensor) -> Tensor:
    heads = x[:, None]
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


CONSTANTS: dict[str, EqualForms] = {
    "added at places": EqualForms(
        lambda m, x: torch.index_add(_added(m, x)[0], 0, *_added(m, x)[1:]),
        lambda m, x: _put(m, x, accumulate=True),
        lambda m, x: _put(m, x, accumulate=False),
    ),
    "added at places, scattered": EqualForms(
        lambda m, x: torch.index_add(_added(m, x)[0], 0, *_added(m, x)[1:]),
        lambda m, x: _scattered(m, x),
        lambda m, x: _scattered(m, x, 1),
    ),
    "added at places of a batch": EqualForms(
        lambda m, x: x.index_add(0, m.rows[1:], x[:2].tanh()),
        lambda m, x: x.index_put((m.rows[1:],), x[:2].tanh(), accumulate=True),
        lambda m, x: x.index_put((m.rows[1:].flip(0),), x[:2].tanh(), accumulate=True),
    ),
    "a mask that is added or filled": EqualForms(
        lambda m, x: _masked(lambda scores: scores + _infinite(1), x),
        lambda m, x: _masked(lambda scores: scores.masked_fill(_later(1).bool(), -math.inf), x),
        lambda m, x: _masked(lambda scores: scores.masked_fill(_later(2).bool(), -math.inf), x),
    ),
    "a mask that is added or chosen by": EqualForms(
        lambda m, x: _masked(lambda scores: scores + _infinite(1), x),
        lambda m, x: _masked(lambda scores: torch.where(_later(1) == 0, scores, -math.inf), x),
        lambda m, x: _masked(lambda scores: torch.where(_later(2) == 0, scores, -math.inf), x),
    ),
    "a mask of two numbers": EqualForms(
        lambda m, x: _masked(lambda scores: scores + _infinite(1), x),
        lambda m, x: _masked(lambda scores: scores + _later(1) * -1e9, x),
        lambda m, x: _masked(lambda scores: scores + _later(2) * -1e9, x),
    ),
    "a mask of the least number": EqualForms(
        lambda m, x: _masked(lambda scores: scores + _infinite(1, torch.finfo().min), x),
        lambda m, x: _masked(lambda scores: scores.masked_fill(_later(1).bool(), -math.inf), x),
        lambda m, x: _masked(lambda scores: scores.masked_fill(_later(2).bool(), -math.inf), x),
    ),
    "a mask of attention": EqualForms(
        lambda m, x: _attended(x, _infinite(1)),
        lambda m, x: _attended(x, torch.ones(TIME, TIME, dtype=torch.bool).tril()),
        lambda m, x: _attended(x, torch.ones(TIME, TIME, dtype=torch.bool).tril(1)),
    ),
}
"""Results of constants that each form makes in its own way."""


def _kernel(m: Written) -> Tensor:
    return m.weight[:TIME, :TIME, None].expand(TIME, TIME, 3)


def _shares(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.log_softmax(-1), x.detach().roll(1, 1).softmax(-1)


def _filled(m: Written, x: Tensor, number: float) -> Tensor:
    scores = _scores(x).masked_fill(~m.mask[:TIME], number)
    return scores.softmax(-1) @ x


def _chosen(m: Written, x: Tensor, number: float) -> Tensor:
    return torch.where(m.mask[:TIME], _scores(x), number).logsumexp(-1)


def _words(m: Written, x: Tensor, reduction: str) -> Tensor:
    return functional.cross_entropy(x.flatten(0, 1), m.ids[:, :TIME].flatten(), reduction=reduction)


def _labels(m: Written, first: int = 0) -> Tensor:
    return m.ids[:, first : first + TIME].flatten()


def _shares_of(labels: Tensor) -> Tensor:
    return functional.one_hot(labels, WIDTH).float()


def _of_labels(x: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(x.flatten(0, 1), labels)


def _quarters(m: Written) -> Tensor:
    return m.ids[:, :TIME].float() / 4


def _units(x: Tensor) -> tuple[Tensor, Tensor]:
    return functional.normalize(x, dim=-1), functional.normalize(x.detach().roll(1, 1), dim=-1)


def _apart(x: Tensor, factor: float = 2.0) -> Tensor:
    one, other = _units(x)
    return (2 - factor * (one * other).sum(-1)).mean()


def _entropy(x: Tensor, factor: float = 1.0) -> Tensor:
    logs = x.log_softmax(-1)
    return x.square().mean() + factor * (logs.exp() * logs).sum(-1).mean()


REJOINED: dict[str, EqualForms] = {
    "a distance of unit vectors": EqualForms(
        lambda m, x: _apart(x),
        lambda m, x: (_units(x)[0] - _units(x)[1]).square().sum(-1).mean(),
        lambda m, x: _apart(x, 2.002),
    ),
    "a guard that no number reaches": EqualForms(
        lambda m, x: x.exp(),
        lambda m, x: torch.clamp(x, min=torch.finfo(x.dtype).min).exp(),
        lambda m, x: torch.clamp(x, min=-0.5).exp(),
    ),
    "an entropy by the library": EqualForms(
        lambda m, x: _entropy(x),
        lambda m, x: x.square().mean() - torch.distributions.Categorical(logits=x).entropy().mean(),
        lambda m, x: _entropy(x, 1.002),
    ),
    "a divergence summed and divided": EqualForms(
        lambda m, x: functional.kl_div(*_shares(x), reduction="batchmean"),
        lambda m, x: functional.kl_div(*_shares(x), reduction="sum") / ROWS,
        lambda m, x: functional.kl_div(*_shares(x), reduction="sum") / (ROWS + 0.01),
    ),
    "a distance averaged by hand": EqualForms(
        lambda m, x: functional.smooth_l1_loss(*_shares(x)),
        lambda m, x: functional.smooth_l1_loss(*_shares(x), reduction="none").mean(),
        lambda m, x: functional.smooth_l1_loss(*_shares(x), reduction="none").mean() * 1.002,
    ),
    "a loss summed and divided": EqualForms(
        lambda m, x: _words(m, x, "mean"),
        lambda m, x: _words(m, x, "sum") / (ROWS * TIME),
        lambda m, x: _words(m, x, "sum") / (ROWS * TIME - 1),
    ),
    "errors averaged by hand": EqualForms(
        lambda m, x: functional.mse_loss(x, x.detach().roll(1, 1)),
        lambda m, x: functional.mse_loss(x, x.detach().roll(1, 1), reduction="none").mean(),
        lambda m, x: functional.mse_loss(x, x.detach().roll(1, 1), reduction="none").sum() / 190,
    ),
    "a mask filled with a large number": EqualForms(
        lambda m, x: _filled(m, x, -math.inf),
        lambda m, x: _filled(m, x, -1e9),
        lambda m, x: _filled(m, x, -5.0),
    ),
    "a mask chosen with a large number": EqualForms(
        lambda m, x: _chosen(m, x, -math.inf),
        lambda m, x: _chosen(m, x, -1e4),
        lambda m, x: _chosen(m, x, -4.0),
    ),
    "a variance corrected by hand": EqualForms(
        lambda m, x: x.var(1, unbiased=False),
        lambda m, x: x.var(1) * ((TIME - 1) / TIME),
        lambda m, x: x.var(1) * (TIME / (TIME + 1)),
    ),
    "a mean of one axis after another": EqualForms(
        lambda m, x: x.mean((1, 2)),
        lambda m, x: x.mean(1).mean(1),
        lambda m, x: x.mean(1).sum(1) / (WIDTH - 1),
    ),
    "the largest of more": EqualForms(
        lambda m, x: x.topk(2, -1).values,
        lambda m, x: x.topk(3, -1).values[..., :2],
        lambda m, x: x.topk(3, -1).values[..., 1:],
    ),
    "sorted the other way": EqualForms(
        lambda m, x: x.sort(-1, descending=True).values[..., :2],
        lambda m, x: x.sort(-1).values.flip(-1)[..., :2],
        lambda m, x: x.sort(-1).values[..., :2],
    ),
    "padded by more and cut": EqualForms(
        lambda m, x: functional.pad(x, (0, 0, 1, 1)),
        lambda m, x: functional.pad(x, (0, 0, 2, 2))[:, 1:-1],
        lambda m, x: functional.pad(x, (0, 0, 2, 2))[:, :-2],
    ),
    "whole parts of quotients": EqualForms(
        lambda m, x: x + m.table[_quarters(m).long()],
        lambda m, x: x + m.table[_quarters(m).floor().long()],
        lambda m, x: x + m.table[_quarters(m).ceil().long()],
    ),
    "a loss of two labels": EqualForms(
        lambda m, x: 0.7 * _of_labels(x, _labels(m)) + 0.3 * _of_labels(x, _labels(m, 1)),
        lambda m, x: _of_labels(x, 0.7 * _shares_of(_labels(m)) + 0.3 * _shares_of(_labels(m, 1))),
        lambda m, x: _of_labels(x, 0.3 * _shares_of(_labels(m)) + 0.7 * _shares_of(_labels(m, 1))),
    ),
    "the larger of two products": EqualForms(
        lambda m, x: torch.maximum(0.9 * x, -0.1 * x),
        lambda m, x: x * (0.9 - (x < 0).float()),
        lambda m, x: x * (0.9 - (x > 0.5).float()),
    ),
    "a product of a norm and a direction": EqualForms(
        lambda m, x: x @ (m.weight * (m.bias[:, None] / m.weight.norm(dim=1, keepdim=True))).T,
        lambda m, x: x @ (m.bias[:, None] * functional.normalize(m.weight, dim=1)).T,
        lambda m, x: x @ (m.bias[:, None] * functional.normalize(m.weight, dim=0)).T,
    ),
    "differences in another order": EqualForms(
        lambda m, x: (x - m.bias) - (x.tanh() - x.roll(1, 1)),
        lambda m, x: (x - x.tanh()) - (m.bias - x.roll(1, 1)),
        lambda m, x: (x - x.tanh()) - (m.bias - x.roll(2, 1)),
    ),
    "more classes than there are": EqualForms(
        lambda m, x: functional.one_hot(m.ids[:, :TIME], WIDTH) * x,
        lambda m, x: functional.one_hot(m.ids[:, :TIME], WIDTH + 2)[..., :-2] * x,
        lambda m, x: functional.one_hot(m.ids[:, :TIME], WIDTH + 2)[..., 2:] * x,
    ),
}
"""Calls told to give something else, of which the next calls make the same: by a number they are told apart."""
