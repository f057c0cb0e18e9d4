"""A scaled loss leaves every number of a training as it is: in float32, a power of two rounds nothing."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import backward, grad
from torch.utils.checkpoint import checkpoint

from lockstep_tune.loss_scale import LossScale

Step = Callable[[], None]


class _Told:
    """Hears what a recorder would of the scale."""

    def __init__(self) -> None:
        self.scales: list[float] = []
        self.skipped = 0

    def loss_scaled(self, factor: float) -> None:
        self.scales.append(factor)

    def update_skipped(self) -> None:
        self.skipped += 1


class _Net:
    """A model whose loss is the output's squared mean, and an optimizer with a rate that a factor would show in."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.x = torch.randn(3, 4)
        self.kept: list[torch.Tensor] = []

    def loss(self) -> torch.Tensor:
        out: torch.Tensor = self.model(self.x)
        return out.square().mean()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def _method(net: _Net) -> None:
    net.loss().backward()


def _function(net: _Net) -> None:
    backward(net.loss())


def _given_gradient(net: _Net) -> None:
    out = net.model(net.x)
    backward([out, out.sum()], [torch.full_like(out, 0.5), None])


def _accumulated(net: _Net) -> None:
    for _ in range(3):
        net.loss().backward()


def _asked_for(net: _Net) -> None:
    for parameter, found in zip(net.parameters, grad(net.loss(), net.parameters), strict=True):
        parameter.grad = found


def _penalty_of_inputs(net: _Net) -> None:
    x = net.x.clone().requires_grad_()
    (slope,) = grad(net.model(x).sum(), x, create_graph=True)
    (net.loss() + (slope.norm(dim=1) - 1).square().mean()).backward()


def _penalty_of_parameters(net: _Net) -> None:
    loss = net.loss()
    slopes = grad(loss, net.parameters, create_graph=True)
    (loss + sum(one.square().sum() for one in slopes)).backward()


def _penalty_of_accumulated(net: _Net) -> None:
    net.loss().backward(create_graph=True)
    slopes = [one.grad for one in net.parameters]
    net.optimizer.zero_grad()
    sum(one.square().sum() for one in slopes).backward()  # type: ignore[union-attr]


def _adversarial(net: _Net) -> None:
    x = net.x.clone().requires_grad_()
    net.model(x).square().mean().backward()
    assert x.grad is not None
    net.model(net.x + x.grad).square().mean().backward()


def _chosen_inputs(net: _Net) -> None:
    hidden = net.model[0](net.x)
    hidden.retain_grad()
    out = net.model[2](hidden.tanh())
    for _ in range(2):
        backward(out.square().mean(), retain_graph=True, inputs=[hidden, net.parameters[0]])
    net.kept.append(hidden.grad.clone())
    net.model[2].weight.grad = hidden.grad.sum(0)[None]


def _hooks(net: _Net) -> None:
    hidden = net.model[0](net.x)
    hidden.retain_grad()
    hidden.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    net.model[2](hidden.tanh()).square().mean().backward()
    net.kept.append(hidden.grad.clone())


def _recomputed(net: _Net) -> None:
    x = net.x.clone().requires_grad_()
    checkpoint(net.model, x, use_reentrant=True).square().mean().backward()
    net.kept.append(x.grad.clone())


class _Slope(torch.autograd.Function):
    """A sine that asks for its own gradient when it is asked for one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, arriving: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (found,) = grad(x.sin().sum(), x)
        return found * arriving


def _within(net: _Net) -> None:
    _Slope.apply(net.model(net.x)).mean().backward()


def _batched(net: _Net) -> None:
    out = net.model(net.x)[:, 0]
    for parameter, found in zip(
        net.parameters, grad(out, net.parameters, torch.eye(3), is_grads_batched=True), strict=True
    ):
        parameter.grad = found.square().sum(0)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is patched is put back."""
    for owner, name in (
        (torch.Tensor, "register_hook"),
        (torch.Tensor, "retain_grad"),
        *((torch.nn.Module, f"register_{one}") for one in
          ("backward_hook", "full_backward_hook", "full_backward_pre_hook")),
        (torch.autograd.Variable, "_execution_engine"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(
        sys.modules[torch.optim.Optimizer.__module__], "_global_optimizer_pre_hooks", OrderedDict()
    )


def _trained(step: Callable[[_Net], None], scale: LossScale | None) -> list[torch.Tensor]:
    """The parameters after three steps, and what the steps kept."""
    if scale is not None:
        scale.patch()
    net = _Net()
    net.parameters[0].register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    net.model[1].register_full_backward_hook(lambda *told: (told[1][0].clamp(-0.1, 0.1),))
    if scale is not None:
        scale.begin()
    for _ in range(3):
        step(net)
        net.update()
    return [*(one.detach() for one in net.parameters), *net.kept]


@pytest.mark.parametrize(
    "step",
    [
        _method, _function, _given_gradient, _accumulated, _asked_for, _penalty_of_inputs, _penalty_of_parameters,
        _penalty_of_accumulated, _adversarial, _chosen_inputs, _hooks, _recomputed, _within, _batched,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using backward.*create_graph")
def test_every_gradient_is_the_one_without_a_scale(
    patched: None, step: Callable[[_Net], None]
) -> None:
    plain = _trained(step, None)
    told = _Told()
    # when the loss is scaled, by which a wrong gradient would be 1 024 times as large
    scaled = _trained(step, LossScale(1024, told))  # type: ignore[arg-type]
    # then parameters, and gradients that the script keeps, are equal bit by bit
    assert len(scaled) == len(plain)
    assert all(torch.equal(*pair) for pair in zip(scaled, plain, strict=True))
    assert set(told.scales) == {1024.0}


def test_float16_gradients_are_saved_from_zero_however_they_are_asked_for(patched: None) -> None:
    scale = LossScale("dynamic", _Told())  # type: ignore[arg-type]
    scale.patch()
    scale.begin()
    x, weight = torch.full((4,), 1e-4), torch.ones(4, requires_grad=True)

    def loss() -> torch.Tensor:
        return ((weight * x).half() * 1e-4).float().mean()

    # given a loss whose gradient is zero in float16
    (found,) = grad(loss(), weight)
    loss().backward()
    # then both ways give it
    assert weight.grad is not None
    assert torch.equal(found, weight.grad)
    assert found.all()


def test_an_update_with_a_gradient_that_overflows_is_left_out(patched: None) -> None:
    told = _Told()
    scale = LossScale("dynamic", told)  # type: ignore[arg-type]
    net = _Net()
    before = [one.detach().clone() for one in net.parameters]
    scale.begin()
    for parameter, found in zip(
        net.parameters, grad(net.loss() * 1e38, net.parameters), strict=True
    ):
        parameter.grad = found
    net.update()
    assert all(map(torch.equal, before, net.parameters))
    assert (told.skipped, scale.scale) == (1, 32768.0)
