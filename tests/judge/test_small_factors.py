"""Factors and constants that one run alone applies: in 16 bits no distance tells them, calls and norms do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Role

Function = Callable[[Tensor], Tensor]


class Part(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Parts(nn.Module):
    """Each function between two products of its own."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(32, 64) for _ in functions)
        self.part = nn.ModuleList(Part(one) for one in functions)
        self.last = nn.ModuleList(nn.Linear(64, 4) for _ in functions)

    def forward(self, x: Tensor) -> Tensor:
        ways = zip(self.first, self.part, self.last, strict=True)
        return torch.stack([last(part(first(x))).float() for first, part, last in ways])


def recorded(path: Path, functions: list[Function]) -> Path:
    """One step under bfloat16 autocast, of which statistics alone are kept."""
    torch.manual_seed(0)
    model = Parts(functions)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with lockstep.record(path, model=model, steps="0:1", save="stats"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        optimizer.step()
    return path


def both_ways(
    tmp_path: Path, pairs: dict[str, tuple[Function, Function]]
) -> tuple[Comparison, Comparison]:
    one, other = (
        recorded(tmp_path / name, [pair[side] for pair in pairs.values()])
        for side, name in enumerate(("one", "other"))
    )
    return compare_recordings(one, other), compare_recordings(other, one)


def unchanged(x: Tensor) -> Tensor:
    return x


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(0.997)
    return y


OTHER: dict[str, tuple[Function, Function]] = {
    "a product": (unchanged, lambda x: x * 1.003),
    "a number first": (unchanged, lambda x: 0.997 * x),
    "a quotient": (unchanged, lambda x: x / 1.006),
    "in place": (unchanged, in_place),
    "a tensor of one element": (unchanged, lambda x: x.mul(torch.tensor(1.003))),
    "a part of itself": (unchanged, lambda x: x + 0.004 * x),
    "a constant": (unchanged, lambda x: x + 0.002),
    "a constant with a factor": (unchanged, lambda x: torch.add(x, 0.001, alpha=2)),
    "there and not quite back": (unchanged, lambda x: 1.0 - (1.003 - x)),
    "after views and casts": (unchanged, lambda x: (x.t().float() * 1.003).bfloat16().t()),
    "another factor": (lambda x: x.neg().neg() * 3.0, lambda x: x / 0.332),
}

SAME: dict[str, tuple[Function, Function]] = {
    "a power of two": (unchanged, lambda x: (x * 0.5) * 2.0),
    "there and back": (unchanged, lambda x: ((x + 0.25) * 0.3 - 0.075) / 0.3),
    "the other way round": (unchanged, lambda x: 1.0 - (1.0 - x)),
    "the sign twice": (unchanged, lambda x: -1.0 * (x * -1.0)),
    "a reciprocal": (lambda x: x.clone().div(3.0), lambda x: x * (1.0 / 3.0)),
    "in halves": (unchanged, lambda x: 0.5 * x + 0.5 * x),
    "a number from a tensor": (
        lambda x: x.mul(float(np.float32(0.7)) * 2.0),
        lambda x: x.div(float(np.float32(1.0 / 1.4))),
    ),
}


def test_the_numbers_of_calls_tell_another_factor_or_constant(tmp_path: Path) -> None:
    # Given trainings of which one multiplies or adds something, by less than rounding to bfloat16 hides
    for found in both_ways(tmp_path, OTHER):
        # When they are compared by statistics alone, then each is named, and by which numbers
        numbers = {one.module.split(".")[1] for one in found.origins if one.module}
        assert [name for n, name in enumerate(OTHER) if str(n) not in numbers] == []
        assert {one.kind for one in found.origins} == {Kind.FAULT}
        assert any("1.003 x" in one.reason for one in found.origins)


def test_the_same_factor_by_other_numbers_is_none(tmp_path: Path) -> None:
    # Given trainings that multiply and add the same, by other calls, when they are compared, then nothing is named
    for found in both_ways(tmp_path, SAME):
        assert [one.reason for one in found.origins] == []
        assert found.verdict is Verdict.AGREE


# --- gradients ---------------------------------------------------------------------------------------


def sent_back(change: Function) -> Function:
    """A function that hands its input on, and changes the gradient that comes back."""

    def function(x: Tensor) -> Tensor:
        x.register_hook(change)
        return x

    return function


class HandedOn(torch.autograd.Function):
    """A function of the script's own: its input, and its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def handed_on_times(factor: float) -> Function:
    return lambda x: HandedOn.apply(x, factor)  # type: ignore[no-untyped-call]


def twice(x: Tensor) -> Tensor:
    return torch.tanh(x) + torch.sigmoid(x)


def twice_with(change: Function) -> Function:
    return lambda x: twice(sent_back(change)(x))


ALTERED: dict[str, tuple[Function, Function]] = {
    "a hook": (unchanged, sent_back(lambda gradient: gradient * 1.003)),
    "a hook that makes it less": (unchanged, sent_back(lambda gradient: gradient * 0.994)),
    "a function of its own": (unchanged, handed_on_times(1.003)),
    "a hook on the sum of two": (twice, twice_with(lambda gradient: gradient * 1.01)),
}

HANDED_ON: dict[str, tuple[Function, Function]] = {
    "a hook that looks": (unchanged, sent_back(lambda gradient: gradient.clone())),
    "there and back": (unchanged, sent_back(lambda gradient: gradient * 3.0 / 3.0)),
    "a function of its own": (unchanged, handed_on_times(1.0)),
    "in other views": (twice, lambda x: twice(x.view(-1, 32)).view(-1, 64)),
}


def test_a_gradient_that_one_run_alters_is_named(tmp_path: Path) -> None:
    # Given trainings of which one changes gradients on their way back, by less than rounding to bfloat16 hides
    for found in both_ways(tmp_path, ALTERED):
        # When they are compared by statistics alone, then each is named where it arrives
        numbers = {one.module.split(".")[1] for one in found.origins if one.module}
        assert [name for n, name in enumerate(ALTERED) if str(n) not in numbers] == []
        assert any(
            "its norm is changed by a factor of 1.003" in one.reason for one in found.origins
        )


def test_a_gradient_that_both_runs_hand_on_is_not(tmp_path: Path) -> None:
    # Given hooks and functions that leave gradients as they are but for rounding, then nothing is named
    for found in both_ways(tmp_path, HANDED_ON):
        assert [one.reason for one in found.origins] == []
        assert found.verdict is Verdict.AGREE


def in_16_bits(path: Path, before_the_update: Callable[[nn.Module], None]) -> Path:
    """One step of a model that holds bfloat16 alone; its gradients may be changed before the optimizer takes them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with lockstep.record(path, model=model, steps="0:1", save="stats"):
        model(torch.randn(64, 32, dtype=torch.bfloat16)).float().square().mean().backward()
        before_the_update(model)
        optimizer.step()
    return path


@torch.no_grad()
def scaled(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(1.003)


@torch.no_grad()
def halved_and_doubled(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5).mul_(2.0)


def test_a_gradient_is_what_backward_left_when_the_optimizer_takes_it(tmp_path: Path) -> None:
    # Given a training in bfloat16, and one whose gradients are multiplied by 1.003 before the update
    plain = in_16_bits(tmp_path / "plain", lambda model: None)
    changed = in_16_bits(tmp_path / "changed", scaled)
    # When they are compared, then the gradients are named; those that come back to what they were are not
    assert compare_recordings(plain, changed).origins[0].role is Role.PARAM_GRAD
    twin = in_16_bits(tmp_path / "twin", halved_and_doubled)
    assert compare_recordings(plain, twin).verdict is Verdict.AGREE
