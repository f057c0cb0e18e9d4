"""Faults in the code: somebody wrote another operator, another argument, another order.

Each is written as what runs instead of one operator call: `(run, args, kwargs, amount) -> result`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from kinds import Amount, FaultKind, Planted, Target, last_part, register
from sites import OperatorCall, Place, Run, replace_call
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, resolve_name
from training import Training

Arguments = tuple[Any, ...]
Instead = Callable[[Run, Arguments, dict[str, Any], float], Any]
Fits = Callable[[OperatorCall], bool]


class _Names(TorchFunctionMode):
    """Lists the operators called while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, (Tensor, tuple, list)):
            self.names.append(resolve_name(func) or "")
        return result


def _replaced(
    name: str,
    fits: Fits,
    instead: Instead,
    *,
    group: str = "forward",
    phases: tuple[str, ...] = ("forward",),
    amount: Amount | None = None,
    any_operator: bool = False,
    random: bool = False,
) -> None:
    """Register a fault that replaces one call.

    Where the replacement is one call of the same operator, that operator has to be named; where it is others, or
    `any_operator`, any operator of the module will do.
    """
    amount = amount or Amount(0, 0)

    def fit(call: OperatorCall) -> Target | None:
        if not fits(call):
            return None
        operators = own_names(call)
        if any_operator or _operators_of(call, instead, amount.high) != [call.place.op]:
            operators = ()
        return Target(call.place, operators=operators)

    def plant(training: Training, planted: Planted) -> None:
        def replacement(at: Place, run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            return instead(run, args, kwargs, planted.amount)

        replace_call(training, planted.target.place, replacement, from_step=planted.from_step)

    register(
        FaultKind(
            name, group, phases, plant, fit=fit, amount=amount, random=random, may_start_late=True
        )
    )


def own_names(call: OperatorCall) -> tuple[str, ...]:
    """The operator's name, and the module's class where the module holds no other (a torch.nn.Linear)."""
    module = call.module
    names = [call.place.op]
    if module is not None and not list(module.children()):
        package = type(module).__module__
        package = "torch.nn" if package.startswith("torch.nn.modules.") else package
        if package == "torch.nn":
            names.append(f"{package}.{type(module).__name__}")
    return tuple(names)


def _operators_of(call: OperatorCall, instead: Instead, amount: float) -> list[str]:
    with _Names() as log:
        instead(call.function, call.args, call.kwargs, amount)
    return log.names


def _named(*names: str) -> Fits:
    wanted = frozenset(names)
    return lambda call: last_part(call.place.op) in wanted and call.differentiable


# ------------------------------------------------------------------------------------- operators

_OTHER_ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(1.05 * x),
    "relu": lambda x: F.leaky_relu(x, 0.02),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.12),
    "tanh": lambda x: x / (1 + x.abs()),
    "sigmoid": F.hardsigmoid,
    "hardswish": F.silu,
    "softplus": lambda x: F.softplus(x, beta=1.1),
}


def _other_activation(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    name = last_part(resolve_name(run) or "")
    if name == "gelu":
        other = "none" if kwargs.get("approximate", "none") == "tanh" else "tanh"
        return F.gelu(args[0], approximate=other)
    return _OTHER_ACTIVATION[name](args[0])


_replaced("activation-variant", _named("gelu", *_OTHER_ACTIVATION), _other_activation)


def _scaled(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    return run(*args, **kwargs) * (1 + amount)


_SCALABLE = (
    "linear", "addmm", "matmul", "__matmul__", "conv2d", "conv_transpose2d", "layer_norm",
    "group_norm", "batch_norm", "embedding", "scaled_dot_product_attention", "silu", "gelu",
)  # fmt: skip
_replaced("output-scaled-code", _named(*_SCALABLE), _scaled, amount=Amount(5e-4, 2e-3))


def _has_bias(call: OperatorCall) -> bool:
    name = last_part(call.place.op)
    if name == "addmm":
        return call.differentiable
    return name in ("linear", "conv2d") and call.tensor(2, "bias") is not None


def _without_bias(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    if last_part(resolve_name(run) or "") == "addmm":
        return torch.mm(args[1], args[2])
    kept = {name: value for name, value in kwargs.items() if name != "bias"}
    return run(*args[:2], None, *args[3:], **kept)


_replaced("dropped-bias", _has_bias, _without_bias, any_operator=True)


def _is_epsilon(value: Any) -> bool:
    return isinstance(value, float) and 0 < value <= 2e-3


def _has_epsilon(call: OperatorCall) -> bool:
    names = ("layer_norm", "group_norm", "batch_norm", "rms_norm", "__add__", "add")
    values = (*call.args, *call.kwargs.values())
    return _named(*names)(call) and any(map(_is_epsilon, values))


def _other_epsilon(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    def other(value: Any) -> Any:
        # Next to a variance of 1e-4 an epsilon of 1e-12 may be ten times larger and change nothing.
        return max(10 * value, 1e-5) if _is_epsilon(value) else value

    return run(*map(other, args), **{name: other(value) for name, value in kwargs.items()})


_replaced("norm-epsilon", _has_epsilon, _other_epsilon)


def _has_factor(call: OperatorCall) -> bool:
    name = last_part(call.place.op)
    if name == "scaled_dot_product_attention":
        return call.differentiable
    factors = [value for value in call.args if isinstance(value, float)]
    plain = name in ("__mul__", "mul", "__truediv__", "div", "__rmul__")
    return plain and call.differentiable and bool(factors) and factors[0] not in (0.0, 1.0)


def _other_factor(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    if last_part(resolve_name(run) or "") == "scaled_dot_product_attention":
        scale = kwargs.get("scale") or 1 / math.sqrt(args[0].shape[-1])
        return run(*args, **{**kwargs, "scale": scale * (1 + amount)})
    return run(
        *(item * (1 + amount) if isinstance(item, float) else item for item in args), **kwargs
    )


_replaced("attention-scale", _has_factor, _other_factor, amount=Amount(0.02, 0.2))


def _mask(call_args: Arguments, kwargs: dict[str, Any]) -> Tensor | None:
    for value in (*call_args, *kwargs.values()):
        if isinstance(value, Tensor) and not value.requires_grad and value.dim() >= 2:
            hides = value.dtype is torch.bool or bool((value.float() < -1e30).any())
            if hides:
                return value
    return None


def _has_mask(call: OperatorCall) -> bool:
    name = last_part(call.place.op)
    if name == "scaled_dot_product_attention":
        return bool(call.kwargs.get("is_causal")) or _mask(call.args, call.kwargs) is not None
    return name in ("__add__", "masked_fill") and _mask(call.args, call.kwargs) is not None


def _other_mask(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    mask = _mask(args, kwargs)
    if mask is None:
        queries, keys = args[0].shape[-2], args[1].shape[-2]
        ones = torch.ones(queries, keys, dtype=torch.bool, device=args[0].device)
        shifted = ones.tril(diagonal=1)
        return run(*args, **{**kwargs, "is_causal": False, "attn_mask": shifted})

    def moved(value: Any) -> Any:
        return value.roll(1, dims=-1) if value is mask else value

    return run(*map(moved, args), **{name: moved(value) for name, value in kwargs.items()})


_replaced("mask-off-by-one", _has_mask, _other_mask, any_operator=True)


def _has_dimension(call: OperatorCall) -> bool:
    output = call.output
    return _named("softmax")(call) and output is not None and min(output.shape[-2:]) > 1


def _other_dimension(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    dimension = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    other = -2 if dimension % args[0].dim() == args[0].dim() - 1 else -1
    if "dim" in kwargs:
        return run(*args, **{**kwargs, "dim": other})
    return run(args[0], other, *args[2:], **kwargs)


_replaced("softmax-dimension", _has_dimension, _other_dimension)


def _other_reduction(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    return run(*args, **{**kwargs, "reduction": "sum"})


def _averages(call: OperatorCall) -> bool:
    names = ("cross_entropy", "mse_loss", "smooth_l1_loss", "nll_loss")
    return _named(*names)(call) and call.kwargs.get("reduction", "mean") == "mean"


_replaced("loss-reduction", _averages, _other_reduction)


def drops(call: OperatorCall) -> bool:
    """Whether a call draws a dropout mask."""
    name, kwargs = last_part(call.place.op), call.kwargs
    if name == "dropout":
        rate = kwargs.get("p", call.args[1] if len(call.args) > 1 else 0.5)
        return rate > 0 and kwargs.get("training", call.args[2] if len(call.args) > 2 else True)
    return False


def _unscaled(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return run(*args, **kwargs) * (1 - rate)


_replaced("dropout-unscaled", lambda call: drops(call) and call.differentiable, _unscaled)


def _has_square_weight(call: OperatorCall) -> bool:
    weight = call.tensor(1, "weight")
    square = weight is not None and weight.dim() == 2 and weight.shape[0] == weight.shape[1]
    return _named("linear")(call) and square and weight.shape[0] > 1


def _transposed(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    return run(args[0], args[1].t(), *args[2:], **kwargs)


_replaced("weight-transposed", _has_square_weight, _transposed, any_operator=True)


def _next_index(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    return run((args[0] + 1) % args[1].shape[0], *args[1:], **kwargs)


_replaced("index-offset", _named("embedding"), _next_index, any_operator=True)


def _other_resampling(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    name, x = last_part(resolve_name(run) or ""), args[0]
    if name == "interpolate":
        if kwargs.get("mode", "nearest") == "bilinear":
            return run(*args, **{**kwargs, "align_corners": not kwargs.get("align_corners")})
        return run(*args, **{**kwargs, "mode": "bilinear"})
    if name == "adaptive_avg_pool2d":
        return F.adaptive_max_pool2d(x, args[1])
    stride = kwargs.get("stride", args[2] if len(args) > 2 else None)
    padding = kwargs.get("padding", args[3] if len(args) > 3 else 0)
    other = F.max_pool2d if name == "avg_pool2d" else F.avg_pool2d
    return other(x, args[1], stride, padding)


_RESAMPLERS = ("interpolate", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d")
_replaced("resampling-variant", _named(*_RESAMPLERS), _other_resampling)


def _joins_two(call: OperatorCall) -> bool:
    parts = call.args[0] if call.args else ()
    two = isinstance(parts, (tuple, list)) and len(parts) == 2
    return _named("cat")(call) and two and parts[0].shape == parts[1].shape


def _swapped(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    return run([args[0][1], args[0][0]], *args[1:], **kwargs)


_replaced("concatenation-order", _joins_two, _swapped)


def _has_momentum(call: OperatorCall) -> bool:
    return _named("batch_norm")(call) and call.tensor(1, "running_mean") is not None


def _momentum(factor: float) -> Instead:
    def instead(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
        if "momentum" in kwargs:
            return run(*args, **{**kwargs, "momentum": kwargs["momentum"] * factor})
        return run(*args[:6], args[6] * factor, *args[7:], **kwargs)

    return instead


_replaced("stale-running-statistics", _has_momentum, _momentum(0.0), group="buffer")
_replaced("running-momentum", _has_momentum, _momentum(1.1), group="buffer")


# -------------------------------------------------------------------------------------- backward


def _joins_branches(call: OperatorCall) -> bool:
    right = call.tensor(1)
    names = ("__add__", "__iadd__", "add", "__mul__", "mul", "matmul", "__matmul__")
    left = call.tensor(0)
    both = left is not None and right is not None and left.requires_grad and right.requires_grad
    return _named(*names)(call) and both and not right.is_leaf


def _detached(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    return run(args[0], args[1].detach(), *args[2:], **kwargs)


_BACKWARD = ("backward",)
_replaced(
    "stray-detach",
    _joins_branches,
    _detached,
    group="backward",
    phases=_BACKWARD,
    any_operator=True,
)


def _hooked(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    result = run(*args, **kwargs)
    result.register_hook(lambda gradient: gradient * (1 + amount))
    return result


_replaced(
    "gradient-hook", _named(*_SCALABLE), _hooked, group="backward", phases=_BACKWARD,
    amount=Amount(0.01, 0.08), any_operator=True,
)  # fmt: skip


class HalfGradientLinear(torch.autograd.Function):
    """A linear layer whose backward multiplies in half precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        x, weight, bias = ctx.saved_tensors
        half = gradient.half()
        rows, columns = half.reshape(-1, half.shape[-1]), x.half().reshape(-1, x.shape[-1])
        for_weight = (rows.t() @ columns).to(weight.dtype)
        for_bias = None if bias is None else gradient.reshape(rows.shape).sum(0)
        return (half @ weight.half()).to(x.dtype), for_weight, for_bias


def _half_gradient(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
    return HalfGradientLinear.apply(args[0], args[1], bias)


_replaced(
    "custom-function-half", _named("linear"), _half_gradient, group="backward", phases=_BACKWARD,
    any_operator=True,
)  # fmt: skip


# ------------------------------------------------------------------------------------ randomness


def _draws_before(run: Run, args: Arguments, kwargs: dict[str, Any], amount: float) -> Any:
    torch.default_generator.manual_seed(torch.default_generator.initial_seed() + 1)
    return run(*args, **kwargs)


_replaced("random-draw-extra", drops, _draws_before, group="random", any_operator=True, random=True)
