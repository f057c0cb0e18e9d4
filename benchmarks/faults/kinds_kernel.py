"""Faults in a kernel: name, inputs and arguments of the operator stay, what it computes is wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernels import Alter, accumulate_input, break_backward, break_forward
from kinds import Amount, FaultKind, Planted, Target, largest, last_part, register
from kinds_code import own_names
from sites import OperatorCall
from torch import Tensor
from training import Training

_CONVOLUTIONS = frozenset(
    {"convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable"}
)
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mkldnn_linear"})
_ATTENTION = frozenset({
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
})  # fmt: skip
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "gru_cell"})

MakeAlter = Callable[[float], Alter | None]


def _last_kernel(call: OperatorCall, names: frozenset[str] | None) -> int | None:
    """Number of the last aten call that makes the result (or one of these names)."""
    output = call.output
    if output is None or not output.is_floating_point():
        return None
    for number in reversed(range(len(call.kernels))):
        kernel = call.kernels[number]
        if names is None and kernel.computes and kernel.numel == output.numel():
            return number
        if names is not None and kernel.name in names:
            return number
    return None


def _forward(
    name: str,
    make: MakeAlter,
    *,
    kernels: frozenset[str] | None = None,
    operators: frozenset[str] | None = None,
    rounded_to: torch.dtype | None = None,
    amount: Amount | None = None,
    group: str = "forward",
    make_reference: MakeAlter | None = None,
) -> None:
    def fit(call: OperatorCall) -> Target | None:
        number = _last_kernel(call, kernels)
        wanted = operators is None or last_part(call.place.op) in operators
        if number is None or not call.differentiable or not wanted or call.output.numel() < 8:
            return None
        return Target(call.place, kernel=number, operators=own_names(call))

    def planter(make: MakeAlter) -> Callable[[Training, Planted], None]:
        def plant(training: Training, planted: Planted) -> None:
            target = planted.target
            break_forward(
                training, target.place, target.kernel, alter=make(planted.amount),
                rounded_to=rounded_to, from_step=planted.from_step,
            )  # fmt: skip

        return plant

    register(
        FaultKind(
            name, group, ("forward",), planter(make), fit=fit, amount=amount or Amount(0, 0),
            plant_reference=planter(make_reference) if make_reference else None,
            may_start_late=True,
        )
    )  # fmt: skip


def _no_change(amount: float) -> Alter | None:
    return None


def _scale(amount: float) -> Alter:
    return lambda tensor: _assign(tensor, tensor * (1 + amount))


def _assign(tensor: Tensor, values: Tensor) -> None:
    tensor.copy_(values)


def _round(dtype: torch.dtype) -> MakeAlter:
    return lambda amount: lambda tensor: _assign(tensor, tensor.to(dtype))


def _put(value: float) -> MakeAlter:
    return lambda amount: lambda tensor: _assign(largest(tensor), torch.tensor(value))


def _bump(amount: float) -> Alter:
    """One element off by `amount` times the root mean square of all."""

    def alter(tensor: Tensor) -> None:
        element = largest(tensor)
        _assign(element, element + amount * tensor.square().mean().sqrt())

    return alter


def _roll(amount: float) -> Alter:
    return lambda tensor: _assign(tensor, tensor.roll(1, dims=0))


def _shift(amount: float) -> Alter:
    """All elements off by `amount` times the root mean square of all."""
    return lambda tensor: _assign(tensor, tensor + amount * tensor.square().mean().sqrt())


def _leave_tail(amount: float) -> Alter:
    """What a loop over vectors leaves unwritten: the last quarter of the last axis, zero."""

    def alter(tensor: Tensor) -> None:
        extent = tensor.shape[-1]
        tensor[..., extent - max(1, extent // 4) :] = 0

    return alter


_forward("matmul-fp16", _no_change, kernels=_PRODUCTS, rounded_to=torch.float16)
_forward("convolution-bf16", _no_change, kernels=_CONVOLUTIONS, rounded_to=torch.bfloat16)
_forward("attention-bf16", _no_change, kernels=_ATTENTION, rounded_to=torch.bfloat16)
_forward(
    "recurrence-fp16",
    _no_change,
    kernels=_PRODUCTS | {"mkldnn_rnn_layer", "_cudnn_rnn"},
    operators=_RECURRENT,
    rounded_to=torch.float16,
)
_forward("output-scaled-kernel", _scale, amount=Amount(-0.03, -0.005))
_forward("output-fp16", _round(torch.float16))
_forward("one-element", _bump, amount=Amount(0.5, 3.0))
_forward("rows-rolled", _roll)
_forward("output-shifted", _shift, amount=Amount(0.02, 0.1))
_forward("tail-unwritten", _leave_tail)
_forward("overflow-inf", _put(float("inf")), group="overflow")
_forward("not-a-number", _put(float("nan")), group="overflow")
_forward(
    "inf-saturated", _put(torch.finfo(torch.float32).max), group="overflow",
    make_reference=_put(float("inf")),
)  # fmt: skip


def _fit_input(call: OperatorCall) -> Target | None:
    """Operators that give as many elements as their first argument has, in its place."""
    number, first = _last_kernel(call, None), call.tensor(0, "input")
    if number is None or first is None or not call.differentiable or call.output.numel() < 8:
        return None
    alike = (first.shape, first.dtype) == (call.output.shape, call.output.dtype)
    if not alike or not call.args or call.args[0] is not first:
        return None
    return Target(call.place, kernel=number, operators=own_names(call))


def _accumulate(training: Training, planted: Planted) -> None:
    target = planted.target
    accumulate_input(
        training, target.place, target.kernel, share=planted.amount, from_step=planted.from_step
    )


register(
    FaultKind(
        "input-accumulated", "forward", ("forward",), _accumulate, fit=_fit_input, amount=Amount(0.02, 0.1),
        may_start_late=True,
    )
)  # fmt: skip

# -------------------------------------------------------------------------------------- backward

Wanted = Callable[[OperatorCall], Tensor | None]


def _weight(call: OperatorCall) -> Tensor | None:
    """A parameter with two or more dimensions among the arguments."""
    values = [*call.args, *call.kwargs.values()]
    values += [item for value in values if isinstance(value, (tuple, list)) for item in value]
    weights = [item for item in values if isinstance(item, torch.nn.Parameter) and item.dim() > 1]
    return weights[-1] if weights and weights[-1].requires_grad else None


def _input(call: OperatorCall) -> Tensor | None:
    """The first argument where a gradient goes back through it."""
    first = call.tensor(0, "input")
    return first if first is not None and first.grad_fn is not None else None


_INPUT_OPERATORS = frozenset({
    "linear", "conv2d", "conv_transpose2d", "layer_norm", "group_norm", "batch_norm", "gelu", "silu",
    "relu", "tanh", "leaky_relu", "softmax", "matmul", "__matmul__", "scaled_dot_product_attention",
    "lstm", "gru", "rnn_tanh", "cross_entropy", "rsqrt", "pow", "hardswish", "max_pool2d",
    "interpolate", "sigmoid", "softplus", "bmm", "einsum", "mse_loss",
})  # fmt: skip
_PRODUCT_OPERATORS = frozenset({"linear", "conv2d", "matmul", "__matmul__", "conv_transpose2d"})


def _backward(
    name: str,
    of: Wanted,
    make: MakeAlter,
    *,
    operators: frozenset[str] | None = None,
    rounded_to: torch.dtype | None = None,
    amount: Amount | None = None,
) -> None:
    def fit(call: OperatorCall) -> Target | None:
        wanted = operators is None or last_part(call.place.op) in operators
        tensor = of(call) if wanted and call.differentiable else None
        if tensor is None or tensor.numel() < 8:
            return None
        return Target(call.place, numel=tensor.numel(), operators=own_names(call))

    def plant(training: Training, planted: Planted) -> None:
        break_backward(
            training, planted.target.place, planted.target.numel, alter=make(planted.amount),
            rounded_to=rounded_to, from_step=planted.from_step,
        )  # fmt: skip

    register(
        FaultKind(
            name, "backward", ("backward",), plant, fit=fit, amount=amount or Amount(0, 0),
            may_start_late=True,
        )
    )  # fmt: skip


def _flip(amount: float) -> Alter:
    return lambda tensor: _assign(tensor, -tensor)


_NORMS = frozenset({"layer_norm", "group_norm", "batch_norm", "rms_norm"})

_backward("weight-gradient-scaled", _weight, _scale, amount=Amount(0.01, 0.04))
_backward(
    "input-gradient-scaled", _input, _scale, operators=_INPUT_OPERATORS, amount=Amount(-0.08, -0.02)
)
_backward("input-gradient-sign", _input, _flip, operators=_INPUT_OPERATORS)
_backward("norm-backward", _input, _scale, operators=_NORMS, amount=Amount(0.005, 0.02))
_backward("gradient-one-element", _input, _bump, operators=_INPUT_OPERATORS, amount=Amount(1, 5))
_backward("recurrent-backward", _weight, _scale, operators=_RECURRENT, amount=Amount(-0.05, -0.01))
_backward(
    "gradient-fp16", _input, _no_change, operators=_PRODUCT_OPERATORS, rounded_to=torch.float16
)
