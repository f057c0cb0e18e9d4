"""Operators written out in torch, with one thing in them otherwise: what hypotheses about formulas run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Form:
    """How a normalisation is computed.

    centred, plain: Whether the mean is taken off; whether the variance is the mean square.
    unbiased: Whether the variance is divided by n - 1.
    outside: Whether epsilon is added to the root instead of under it.
    constant_mean, constant_variance: Whether backward leaves out the term that they bring.
    running_biased: Whether the running variance is divided by n.
    """

    centred: bool = True
    plain: bool = False
    unbiased: bool = False
    outside: bool = False
    constant_mean: bool = False
    constant_variance: bool = False
    running_biased: bool = False


FORMS: tuple[tuple[str, Form], ...] = (
    ("with its variance divided by n - 1 instead of n", Form(unbiased=True)),
    ("with eps outside of the root", Form(outside=True)),
    ("without the mean taken off", Form(centred=False)),
    ("without the mean taken off, in its variance neither", Form(centred=False, plain=True)),
    ("with its running variance divided by n instead of n - 1", Form(running_biased=True)),
)
BACKWARD_FORMS: tuple[tuple[str, Form], ...] = (
    ("without the term of the mean in its backward", Form(constant_mean=True)),
    ("without the term of the variance in its backward", Form(constant_variance=True)),
    (
        "with mean and variance as constants in its backward",
        Form(constant_mean=True, constant_variance=True),
    ),
)


def _normalised(x: Tensor, axes: Sequence[int], eps: float, form: Form) -> Tensor:
    mean = x.mean(tuple(axes), keepdim=True)
    mean = mean.detach() if form.constant_mean else mean
    centred = x - mean if form.centred else x
    squares = x.square() if form.plain else (x - mean).square()
    if form.unbiased:
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        variance = squares.sum(tuple(axes), keepdim=True) / (count - 1)
    else:
        variance = squares.mean(tuple(axes), keepdim=True)
    variance = variance.detach() if form.constant_variance else variance
    return centred / (variance.sqrt() + eps if form.outside else (variance + eps).sqrt())


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Tensor:
    x = x if weight is None else x * weight.reshape(tuple(shape))
    return x if bias is None else x + bias.reshape(tuple(shape))


def _layer_norm(
    form: Form,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    axes = range(-len(normalized_shape), 0)
    return _scaled(_normalised(input, axes, eps, form), weight, bias, normalized_shape)


def _rms_norm(
    form: Form,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = range(-len(normalized_shape), 0)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _scaled(_normalised(input, axes, eps, form), weight, None, normalized_shape)


def _group_norm(
    form: Form,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    grouped = input.reshape(input.shape[0], num_groups, -1)
    normed = _normalised(grouped, (-1,), eps, form).reshape(input.shape)
    return _scaled(normed, weight, bias, _per_channel(input))


def _per_channel(input: Tensor) -> tuple[int, ...]:
    return (1, input.shape[1], *(1 for _ in input.shape[2:]))


def _batch_norm(
    form: Form,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    if not training:
        raise ValueError("statistics are not of this batch")
    axes = (0, *range(2, input.dim()))
    with torch.no_grad():
        before = None if running_var is None else running_var.clone()
        F.batch_norm(input.detach(), running_mean, running_var, None, None, True, momentum, eps)
        if form.running_biased and running_var is not None and before is not None:
            variance = input.var(axes, unbiased=False)
            running_var.copy_(before * (1 - momentum) + momentum * variance)
    return _scaled(_normalised(input, axes, eps, form), weight, bias, _per_channel(input))


def _instance_norm(
    form: Form,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    if running_mean is not None or not use_input_stats:
        raise ValueError("statistics are not of this batch")
    normed = _normalised(input, range(2, input.dim()), eps, form)
    return _scaled(normed, weight, bias, _per_channel(input))


_NORMS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
}


def norms(name: str, *, backward: bool) -> list[tuple[str, Callable[..., Tensor]]]:
    """A normalisation otherwise, with words for it; none where it is no normalisation."""
    written = _NORMS.get(name)
    if written is None:
        return []
    forms = BACKWARD_FORMS if backward else FORMS
    if name == "rms_norm":
        forms = (
            (("without the term of the mean square in its backward",
              Form(centred=False, plain=True, constant_variance=True)),)
            if backward
            else (("with eps outside of the root", Form(centred=False, plain=True, outside=True)),
                  ("with the mean taken off", Form()))
        )  # fmt: skip
    elif name != "batch_norm":
        forms = tuple(one for one in forms if not one[1].running_biased)
    return [(words, partial(written, form)) for words, form in forms]


# ------------------------------------------------------------------------------ a term left out of a backward


def _exponentials(x: Tensor, dim: int) -> Tensor:
    return torch.exp(x - x.amax(dim, keepdim=True).detach())


def _softmax(input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Tensor:
    if dim is None:
        raise ValueError("its axis is not given")
    e = _exponentials(input, dim)
    return e / e.sum(dim, keepdim=True).detach()


def _log_softmax(input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Tensor:
    if dim is None:
        raise ValueError("its axis is not given")
    return input - torch.logsumexp(input, dim, keepdim=True).detach()


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    if label_smoothing or target.dtype.is_floating_point:
        raise ValueError("targets are no classes")
    axis = 1 if input.dim() > 1 else 0
    logarithms = input - torch.logsumexp(input, axis, keepdim=True).detach()
    return F.nll_loss(logarithms, target, weight, None, ignore_index, None, reduction)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p or enable_gqa:
        raise ValueError("only plain attention is written out")
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return _softmax(scores, -1) @ value


def _normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(input, p, dim, keepdim=True)
    return input / length.clamp_min(eps).detach()


def _gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    return (
        input
        * torch.where(input == 0, 0.5, F.gelu(input, approximate=approximate) / input).detach()
    )


def _silu(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input * torch.sigmoid(input).detach()


WITHOUT_TERM: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "softmax": ("without the term of the sum in its backward", _softmax),
    "log_softmax": ("without the term of the sum in its backward", _log_softmax),
    "cross_entropy": ("without the term of the softmax in its backward", _cross_entropy),
    "scaled_dot_product_attention": (
        "without the term of the softmax's sum in its backward", _attention),
    "normalize": ("without the term of the norm in its backward", _normalize),
    "gelu": ("with its gate as a constant in its backward", _gelu),
    "silu": ("with its gate as a constant in its backward", _silu),
}  # fmt: skip
"""By bare name: what backward lacks, and the operator so."""

_ACTIVATIONS = (
    "relu", "relu6", "gelu", "silu", "mish", "hardswish", "sigmoid", "hardsigmoid", "tanh", "hardtanh", "softsign",
    "elu", "selu", "celu", "leaky_relu", "softplus", "logsigmoid", "tanhshrink",
)  # fmt: skip
_ALIKE = (
    ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    ("max_pool1d", "avg_pool1d"),
    ("max_pool2d", "avg_pool2d"),
    ("adaptive_avg_pool2d", "adaptive_max_pool2d"),
    ("softmax", "log_softmax", "softmin"),
    ("index_add", "index_copy"),
    ("scatter_add", "scatter"),
    ("add", "sub", "mul", "div"),
    ("sin", "cos"),
    ("amax", "amin", "mean", "sum"),
    ("floor", "round", "trunc", "ceil"),
)
"""Operators that take the same arguments and are taken for each other."""


def _plain(function: Callable[..., Any], input: Tensor, *_: Any, **__: Any) -> Any:
    return function(input)


def others_like(name: str) -> list[tuple[str, Callable[..., Any]]]:
    """Operators that may stand in for another one: activations with their defaults, others with its arguments."""
    if name in _ACTIVATIONS:
        return [(one, partial(_plain, vars(F)[one])) for one in _ACTIVATIONS if one != name]
    found = []
    for group in _ALIKE:
        for other in group if name in group else ():
            function = vars(F).get(other) or vars(torch).get(other)
            if other != name and callable(function):
                found.append((other, function))
    return found
