"""Autograd beyond the plain loop: custom functions, second derivatives, hooks, partial backwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    CallKind,
    Phase,
    Role,
    Training,
    as_tensor,
    calls,
    check,
    named,
    not_seen,
    one_call,
    one_record,
    same,
    supervised,
    values,
)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = ("module", "api", "aten")


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(3, 4),)


class Scaled(torch.autograd.Function):
    """Doubles, in operators of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return torch.mul(x, 1.0) * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.mul(grad, ctx.factor), None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


class WithIndices(torch.autograd.Function):
    """Two outputs, one of which takes no gradient."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        result, indices = x.sort(dim=1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return result, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _indices: Tensor) -> Tensor:
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter_(1, indices, grad)


class BehindTheBack(torch.autograd.Function):
    """Changes its input without saying so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.data.add_(1)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Custom(nn.Module):
    def __init__(self, function: Any, *extra: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.after = nn.Linear(4, 4)
        self.function, self.extra = function, extra

    def forward(self, x: Tensor) -> Tensor:
        y = self.function.apply(self.lin(x) * 1, *self.extra)
        return self.after(y[0] if isinstance(y, tuple) else y)


FUNCTIONS = {
    "Scaled": (Scaled, 2.0),
    "InPlace": (InPlace,),
    "WithIndices": (WithIndices,),
    "BehindTheBack": (BehindTheBack,),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_custom_function_is_one_operator_with_gradients(
    tmp_path: Path, kind: str, level: str
) -> None:
    function, *extra = FUNCTIONS[kind]
    recording = check(
        lambda: supervised(Custom(function, *extra), batch), tmp_path / "ref", level=level
    )

    custom = one_call(recording, f"test_autograd.{kind}", "")
    after = one_call(recording, "torch.nn.Linear", "after")
    given, made = values(custom, Role.INPUT), values(custom, Role.OUTPUT)
    assert same(values(after, Role.INPUT), made)
    grad = values(custom, Role.GRAD_OUTPUT)
    assert same(grad, values(after, Role.GRAD_INPUT))
    sent = values(custom, Role.GRAD_INPUT)
    if kind == "Scaled":
        assert custom.arguments == {"args.1": 2.0}
        assert same(made, given * 2)
        assert same(sent, grad * 2)
    if kind == "InPlace":
        assert same(made, given * 3)
        assert same(sent, grad * 3)
    if kind == "BehindTheBack":
        assert same(made, (given + 1) * 2)
    if kind == "WithIndices":
        indices = one_record(custom, Role.OUTPUT, 1)
        assert indices.dtype == "int64"
        assert same(made, given.gather(1, as_tensor(indices)))
        assert torch.allclose(sent.gather(1, as_tensor(indices)), grad)
    if level == "api":
        # its own operators are part of it
        assert [call.site.op for call in calls(recording, "torch.mul")] == []


def test_modules_called_inside_a_custom_function_are_recorded(tmp_path: Path) -> None:
    class Around(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
            return module(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return grad, None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.inside = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return Around.apply(self.lin(x), self.inside)

    recording = check(lambda: supervised(Model(), batch), tmp_path / "ref")

    around = one_call(recording, "Around")
    inside = one_call(recording, "torch.nn.Linear", "inside")
    assert inside.parent == around.id
    assert same(values(inside, Role.OUTPUT), values(around, Role.OUTPUT))
    assert inside.with_role(Role.GRAD_OUTPUT) == ()


@pytest.mark.parametrize("level", LEVELS)
def test_a_gradient_penalty_is_recorded_with_both_backwards(tmp_path: Path, level: str) -> None:
    # given a loss that holds the norm of a gradient
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            x = torch.randn(3, 4, requires_grad=True)
            score = model(x).sum()
            (grad,) = torch.autograd.grad(score, x, create_graph=True)
            loss = score + (grad.norm() - 1).square()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref", level=level)

    # then the gradients of both passes are there, told apart by their occurrence
    first = one_call(recording, "torch.nn.Linear", "0")
    weight = one_call(recording, "torch.nn.Linear", "2")
    assert same(values(weight, Role.GRAD_OUTPUT, 0, 0), torch.ones(3, 1))
    assert len([r for r in first.records if r.role is Role.GRAD_OUTPUT]) == 2
    if level == "api":
        penalty = one_call(recording, "norm")
        assert same(values(penalty, Role.INPUT), values(first, Role.GRAD_INPUT, 0, 0))
        assert calls(recording, recomputed=True) == []
    assert len(named(recording, "loss", Role.LOSS)) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_asked_for_by_name_come_from_inside_the_step(tmp_path: Path, level: str) -> None:
    # given a training that takes its gradients from autograd.grad and updates by hand
    def build() -> Training:
        model = nn.Linear(4, 2)

        def step(_: int) -> Tensor:
            loss = model(torch.randn(3, 4)).square().mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.sub_(grad * 0.1)
            return loss.detach()

        return Training(model, step)

    recording = check(build, tmp_path / "ref", steps=1, level=level)

    # then no gradient is taken for data
    arrived = calls(recording, kind=CallKind.DATA)
    assert [r.shape for call in arrived for r in call.records if r.shape == (2, 4)] == []


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_a_parameter_are_cleared_in_place(tmp_path: Path, level: str) -> None:
    # given a training that clears the padding row in each step, as torch.nn.init code does
    def build() -> Training:
        model = nn.Embedding(5, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> Tensor:
            with torch.no_grad():
                row = model.weight[number]
            row.detach()
            with torch.no_grad():
                model.weight[0].fill_(0)
                row.mul_(2)
            loss = model(torch.arange(5)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    # then it is recorded to its end
    recording = check(build, tmp_path / "ref", level=level)
    assert recording.missing == ()


def test_two_backwards_through_one_graph_are_told_apart(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            output = model(torch.randn(3, 4))
            output.sum().backward(retain_graph=True)
            (output * 2).sum().backward()
            optimizer.step()
            return output.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref")

    linear = one_call(recording, "linear", "")
    assert same(values(linear, Role.GRAD_OUTPUT, 0, 0), torch.ones(3, 2))
    assert same(values(linear, Role.GRAD_OUTPUT, 0, 1), torch.full((3, 2), 2.0))


def test_a_backward_that_reaches_only_some_inputs(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            hidden = model[0](torch.randn(3, 4))
            loss = (model[1](hidden) + hidden * hidden).sum()
            loss.backward(inputs=[model[1].weight])
            optimizer.step()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref")

    second = one_call(recording, "linear", "1")
    names = {record.name for record in second.with_role(Role.PARAM_GRAD)}
    assert "1.weight" in names
    assert one_call(recording, "linear", "0").with_role(Role.PARAM_GRAD) == ()


def double(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return output * 2


def halve(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(arg / 2 for arg in args)


def halve_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@pytest.mark.parametrize("level", LEVELS)
def test_hooks_of_the_users_own_work_as_ever(tmp_path: Path, level: str) -> None:
    # given every kind of hook, each of which changes something
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        model[0].register_forward_hook(double)
        model[1].register_forward_pre_hook(halve)
        model[1].register_full_backward_hook(lambda _m, grads, _o: (grads[0] * 3,))
        model[2].register_full_backward_pre_hook(lambda _m, grads: (grads[0] + 1,))
        model[2].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
        model[2].bias.register_post_accumulate_grad_hook(halve_gradient)
        seen: list[Tensor] = []
        training = supervised(model, batch)
        plain = training.step

        def step(number: int) -> list[Tensor]:
            handle = torch.nn.modules.module.register_module_forward_hook(
                lambda _m, _a, output: seen.append(output.detach().clone())
            )
            value = plain(number)
            handle.remove()
            return [value, *seen]

        training.step = step
        return training

    recording = check(build, tmp_path / "ref", level=level)

    first = one_call(recording, "torch.nn.Linear", "0")
    second = one_call(recording, "torch.nn.Linear", "1")
    assert same(values(second, Role.INPUT), values(first, Role.OUTPUT))
    if level == "api":
        assert same(
            values(first, Role.OUTPUT), values(one_call(recording, "linear", "0"), Role.OUTPUT) * 2
        )


def test_transforms_of_functions_inside_a_step(tmp_path: Path) -> None:
    # given per-sample gradients by vmap over grad, and a functional call
    def build() -> Training:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def sample_loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(model, parameters, (x[None],)).square().sum()

        def step(_: int) -> list[Tensor]:
            optimizer.zero_grad()
            x = torch.randn(3, 4)
            loss = model(x).square().sum()
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            grads = torch.func.vmap(torch.func.grad(sample_loss), (None, 0))(parameters, x)
            scale = 1 / (1 + grads["weight"].norm())
            (loss * scale).backward()
            optimizer.step()
            return [loss.detach(), grads["weight"]]

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref")

    assert any("torch.func" in what for what in not_seen(recording))
    shapes = [r.shape for c in calls(recording, kind=CallKind.DATA) for r in c.records]
    assert (3, 1, 4) not in shapes
    norm = one_call(recording, "norm")
    total = one_call(recording, "linear", "")
    assert values(norm, Role.INPUT).shape == (3, 1, 4)
    assert total.with_role(Role.PARAM_GRAD)


@pytest.mark.parametrize("level", LEVELS)
def test_a_functional_model_without_modules(tmp_path: Path, level: str) -> None:
    # given parameters that no module owns
    def build() -> Training:
        weight = torch.randn(4, 2, requires_grad=True)
        bias = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight, bias], lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = F.relu(torch.randn(3, 4) @ weight + bias).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(None, step, {"weight": weight}, [optimizer])

    recording = check(build, tmp_path / "ref", level=level)

    name = "param_groups[0].params[0]"
    for step in (0, 1):
        (after,) = named(recording, name, Role.PARAM_AFTER, step=step)
        assert after.shape == (4, 2)
    if level == "api":
        multiply = one_call(recording, "matmul", step=1)
        assert {record.name for record in multiply.with_role(Role.INPUT)} >= {name}
        assert same(
            values(multiply, Role.PARAM_GRAD, 1),
            as_tensor(named(recording, name, Role.PARAM_GRAD, step=1)[-1]),
        )
        assert one_call(recording, "relu", step=1).site.phase is Phase.FORWARD


class WritesToWhatArrives(torch.autograd.Function):
    """Doubles, and writes to the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mul_(2)


@pytest.mark.parametrize("kind", ["torch's own", "torch's own, saved aside", "custom"])
@pytest.mark.parametrize("level", ["api", "aten"])
def test_what_arrives_at_a_call_outside_of_modules_is_told_before_what_leaves(
    tmp_path: Path, kind: str, level: str
) -> None:
    # given one call between two others, none of them in a module
    def build() -> Training:
        weight = nn.Parameter(torch.randn(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            before = weight * torch.randn(4)
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
                aside = before.sin()
            between = before.sin() if kind == "torch's own" else aside
            if kind == "custom":
                between = WritesToWhatArrives.apply(before)
            loss = torch.div(between, 0.3).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(None, step, {"weight": weight}, [optimizer])

    # when it is recorded, then the training is as bare, and
    recording = check(build, tmp_path / "ref", level=level)
    custom = "test_autograd.WritesToWhatArrives"
    between = next(
        call
        for call in calls(recording, custom if kind == "custom" else "sin")
        if call.with_role(Role.GRAD_OUTPUT)
    )
    scaled = one_call(recording, "torch.div")

    # ... each gradient is what it was at its time, in the order of time
    (arrived,), (left,) = between.with_role(Role.GRAD_OUTPUT), between.with_role(Role.GRAD_INPUT)
    (sent,) = scaled.with_role(Role.GRAD_INPUT)
    assert arrived.sequence < left.sequence
    assert sent.sequence < arrived.sequence
    assert same(as_tensor(arrived), as_tensor(sent))
    given = values(between, Role.INPUT)
    factor = torch.full((4,), 2.0) if kind == "custom" else given.cos()
    assert torch.allclose(as_tensor(left), as_tensor(arrived) * factor)
