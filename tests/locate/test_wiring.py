"""A call that takes another tensor of the run than it should, and one whose input is wrong otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Origin, Verdict
from lockstep.core.site import Role


class Gated(nn.Module):
    """A product of two branches; `fault` says what it multiplies by instead."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.enter, self.fault = nn.Linear(8, 8), fault

    def forward(self, x: Tensor) -> Tensor:
        value = self.enter(x)
        gate, branch = torch.sigmoid(value), torch.tanh(value)
        taken = gate if self.fault == "gate" else branch
        if self.fault == "made anew":
            taken = torch.relu(value)
        return torch.mul(value, taken) + 0 * gate


def origin_of(tmp_path: Path, fault: str, make: Callable[[str], nn.Module] = Gated) -> Origin:
    """The first origin of one step with a fault against one without."""
    paths = []
    for name in ("", fault):
        torch.manual_seed(0)
        model, batch = make(name), torch.randn(16, 8)
        paths.append(tmp_path / (name or "sound"))
        with lockstep.record(paths[-1], model=model, steps="0:1"), torch.no_grad():
            model(batch)
    return lockstep.compare_recordings(*paths).origins[0]


def test_the_tensor_that_is_taken_instead_is_named(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, "gate")

    assert (origin.op, origin.role) == ("torch.mul", Role.INPUT)
    assert (
        "the candidate takes the result of torch.sigmoid #0 here, which is bitwise equal in both runs, where the"
        " reference takes that of torch.tanh #0"
    ) in origin.reason


class Dropped(nn.Module):
    """A sum of two branches of which one goes through an operator; `fault` says what does so instead."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.enter, self.act, self.fault = nn.Linear(8, 8), nn.Tanh(), fault

    def forward(self, x: Tensor) -> Tensor:
        value = self.enter(x)
        if self.fault == "factor":
            value = value * 1.5
        y: Tensor = self.act(x + value) if self.fault == "order" else x + self.act(value)
        return y + self.enter(y)


def test_two_operators_in_the_other_order_are_named(tmp_path: Path) -> None:
    # Given a sum that goes into the operator whose result should be summed
    origin = origin_of(tmp_path, "order", Dropped)

    # Then what the reference takes is there in both runs, and the candidate takes the sum
    assert (
        "the candidate takes the result of torch.Tensor.add #0 of the model here, where the reference takes that of"
        " torch.nn.functional.linear #0 of enter, which is bitwise equal in both runs"
    ) in origin.reason


def test_a_factor_in_between_is_no_other_tensor(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, "factor", Dropped)

    assert "torch.Tensor.mul" in origin.reason
    assert "takes the result" not in origin.reason


def test_a_batch_that_is_taken_for_the_other_calls_nothing(tmp_path: Path) -> None:
    # Given a step of two batches, of which the candidate takes the second for the first
    torch.manual_seed(0)
    batches, model = torch.randn(2, 4, 8), nn.Linear(8, 8)
    for name, taken in (("sound", 0), ("wrong", 1)):
        with lockstep.record(tmp_path / name, model=model, steps="0:1"), torch.no_grad():
            nn.functional.mse_loss(model(batches[taken] * 2), batches[1] * 2)
    found = lockstep.compare_recordings(tmp_path / "sound", tmp_path / "wrong")

    # Then no sentence speaks of calls where nothing is called
    assert found.origins
    assert not any("calls ;" in one.reason or "calls batch" in one.reason for one in found.origins)


def test_a_tensor_that_one_run_alone_makes_is_no_other_tensor_of_the_run(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, "made anew")

    assert "torch.relu" in origin.reason
    assert "takes the result" not in origin.reason


Join = Callable[[Tensor, Tensor], Tensor]


class Joined(nn.Module):
    """Two branches, and what is made of them."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self.enter, self.join = nn.Linear(8, 8), join

    def forward(self, x: Tensor) -> Tensor:
        value = self.enter(x)
        return self.join(torch.sigmoid(value), torch.tanh(value))


JOINS: dict[str, Join] = {
    "turned": lambda one, two: (two + one) * torch.mul(two, one),
    "wrong": lambda one, two: (one + one) * torch.mul(two, one),
}


@pytest.mark.parametrize("name", JOINS)
def test_operands_that_stand_the_other_way_round_are_the_same(tmp_path: Path, name: str) -> None:
    # given a training, and one whose sums and products have their operands the other way round, or a wrong one
    paths = []
    for join in (lambda one, two: (one + two) * torch.mul(one, two), JOINS[name]):
        torch.manual_seed(0)
        model = Joined(join)
        paths.append(tmp_path / f"{len(paths)}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lockstep.record(paths[-1], model=model, steps="0:1"):
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()

    found = lockstep.compare_recordings(*paths)

    # then the order is no difference, and the wrong operand is
    assert found.verdict is (Verdict.DIVERGED if name == "wrong" else Verdict.AGREE)
    assert bool(found.origins) is (name == "wrong")
