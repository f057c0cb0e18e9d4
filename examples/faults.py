"""Wrong layers and optimizers, each wrong in one way, for the ``--fault`` switch of the examples.

Each is a subclass of the right one with the same parameters and the same arguments, so that a
layer can be made faulty where it stands::

    model.get_submodule("encoder.lstm").__class__ = ReversedGradientLSTM

A faulty backward leaves the forward bit for bit as it was: only the gradients tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

# ---------------------------------------------------------------------------------------------
# Forward


class ErfGELU(nn.Module):
    """The exact GELU where its tanh approximation was asked for."""

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input)


class HalfInputConv2d(nn.Conv2d):
    """A convolution that rounds its input to fp16, as a kernel for matrix units may do."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.half().float())


# ---------------------------------------------------------------------------------------------
# Backward


class _ReverseGradient(Function):
    """The identity, whose gradient comes out with its time steps in reverse order."""

    @staticmethod
    def forward(ctx: Any, sequence: Tensor) -> Tensor:
        return sequence

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(1)


class ReversedGradientLSTM(nn.LSTM):
    """An LSTM whose backward writes the input's gradient in the order in which it computes it.

    Back-propagation through time walks from the last step to the first; a kernel that forgets
    to turn the result round hands step t the gradient of step T - 1 - t. Norm, mean, minimum
    and maximum of that gradient are right, and so are the gradients of the LSTM's own weights.
    """

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        return super().forward(_ReverseGradient.apply(input), hx)


class _HalfGradient(Function):
    """The identity, whose gradient is rounded to fp16."""

    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        return input

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.half().float()


class HalfGradientConv2d(nn.Conv2d):
    """A convolution whose input gradient is rounded to fp16: 11 bits, nothing below 6e-8."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(_HalfGradient.apply(input))


class _LayerNormWithoutMeanGradient(Function):
    """Layer normalisation with a hand-written backward that lacks one of its three terms."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.eps = eps
        return F.layer_norm(input, weight.shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        input, weight = ctx.saved_tensors
        variance, mean = torch.var_mean(input, -1, correction=0, keepdim=True)
        inverse_deviation = torch.rsqrt(variance + ctx.eps)
        normalised = (input - mean) * inverse_deviation
        scaled = gradient * weight
        # Right would be: scaled - scaled.mean(-1) - normalised * (...).
        centred = scaled - normalised * (scaled * normalised).mean(-1, keepdim=True)
        rows = tuple(range(gradient.dim() - 1))
        return (
            inverse_deviation * centred,
            (gradient * normalised).sum(rows),
            gradient.sum(rows),
            None,
        )


class MeanlessGradientLayerNorm(nn.LayerNorm):
    """A layer norm whose backward forgets that the mean depends on the input, too."""

    def forward(self, input: Tensor) -> Any:
        return _LayerNormWithoutMeanGradient.apply(input, self.weight, self.bias, self.eps)


# ---------------------------------------------------------------------------------------------
# Optimizer: the hyper-parameters that these report are the right ones, only the step is wrong


class CoarseEpsilonAdamW(torch.optim.AdamW):
    """AdamW whose step adds 1e-4 to the denominator whatever its ``eps`` says."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = state["step"].item()
        beta1, beta2 = group["betas"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        deviation = state["exp_avg_sq"].sqrt() / (1 - beta2**step) ** 0.5
        step_size = group["lr"] / (1 - beta1**step)
        parameter.addcdiv_(state["exp_avg"], deviation.add_(1e-4), value=-step_size)


class DecaylessSGD(torch.optim.SGD):
    """SGD with momentum whose step ignores ``weight_decay``."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = gradient.clone()
        else:
            state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.add_(state["momentum_buffer"], alpha=-group["lr"])
