"""Layers that write into their argument when they are told to: `inplace=True`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Role
from lockstep.laws.step_events import Node, StepOfRun
from lockstep.laws.step_sides import side_of


class _Net(nn.Module):
    """A convolution whose result the ReLU behind it overwrites."""

    def __init__(self, factor: float, inplace: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 8, 3), nn.Linear(8 * 16, 4)
        self.relu, self.factor = nn.ReLU(inplace=inplace), factor

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.enter(x))
        if self.factor != 1.0:
            h.register_hook(lambda gradient: gradient * self.factor)
        return self.leave(h.flatten(1))


def recorded(path: Path, *, factor: float = 1.0, inplace: bool = True, save: str) -> Path:
    torch.manual_seed(0)
    net = _Net(factor, inplace)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with lockstep.record(path, model=net, save=save):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(net(torch.randn(4, 3, 6, 6)), torch.randint(0, 4, (4,))).backward()
            optimizer.step()
    return path


def compared(folder: Path, save: str, *, factor: float = 1.0, inplace: bool = True) -> Comparison:
    """A training whose ReLU writes into its argument, beside another one."""
    reference = recorded(folder / "reference", save=save)
    candidate = recorded(folder / "candidate", factor=factor, inplace=inplace, save=save)
    return lockstep.compare_recordings(reference, candidate)


@pytest.mark.parametrize("save", ["program", "tensors"])
def test_a_result_that_is_overwritten_is_held_against_what_it_was(
    tmp_path: Path, save: str
) -> None:
    # given the same function, out of place in the candidate
    found = compared(tmp_path, save, inplace=False)
    # then every law was applied
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()


@pytest.mark.parametrize("save", ["program", "tensors"])
def test_a_gradient_that_is_too_large_behind_it_is_found_by_the_laws(
    tmp_path: Path, save: str
) -> None:
    # given 1 % more of a gradient, which no recorded call shows
    found = compared(tmp_path, save, factor=1.01)
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert {one.breach.name for one in found.laws.breaches} >= {"enter.weight"}


def test_a_run_keeps_what_a_result_was_before_it_is_overwritten(tmp_path: Path) -> None:
    # given a step whose convolution gives numbers below zero, which the ReLU overwrites
    recording = lockstep.open(recorded(tmp_path / "run", save="tensors"))
    calls = recording.ranks["rank0"].calls(0)
    side = side_of("reference", StepOfRun(tuple(calls)))
    conv = next(one.call for one in side.program.operators if one.call.site.op.endswith("conv2d"))
    # when it is run again
    found = side.double.run(side.own).values[Node(conv.id, 0)]
    # then the convolution's result is still its own
    (record,) = conv.with_role(Role.OUTPUT)
    assert torch.allclose(found, torch.tensor(record.load()).double(), atol=1e-6)
    assert bool((found < 0).any())
