"""What arrives in a step and is no batch: it follows from the run where nothing is recorded, or through Python."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Outcome, Verdict
from lockstep.core.site import Phase
from lockstep.devices.emulation.mode import emulate

WIDTH, ROWS, STEPS = 24, 16, 4


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 5)
    )


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def distilled(fault: float) -> None:
    """The teacher runs first, where no step is open yet but the first one."""
    teacher, student = net().eval().requires_grad_(False), net()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    for step in range(STEPS):
        batch = torch.randn(ROWS, WIDTH)
        with torch.no_grad():
            wanted = functional.softmax(teacher(batch) * (fault if step else 1.0), -1)
        found = functional.log_softmax(student(batch), -1)
        update(optimizer, functional.kl_div(found, wanted, reduction="batchmean"))


def rolled_out(fault: float) -> None:
    """A policy acts in an environment of NumPy, and learns from what was stored in tensors made before."""
    policy = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    seen, gains = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS)
    state = torch.randn(WIDTH)
    for step in range(STEPS):
        for row in range(ROWS):
            seen[row] = state
            with torch.no_grad():
                action = policy(state)
            moved = np.tanh(state.numpy() + action.numpy())
            gains[row] = float(moved.sum()) * (fault if step else 1.0)
            state = torch.from_numpy(moved)
        update(optimizer, (policy(seen).squeeze(-1) - gains).square().mean())


def averaged(fault: float) -> None:
    """Weights that are averaged by hand between the steps go into the loss."""
    student = net()
    slow = copy.deepcopy(student.state_dict())
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    for _ in range(STEPS):
        out = student(torch.randn(ROWS, WIDTH))
        pull = (student[0].weight - slow["0.weight"]).square().mean()
        update(optimizer, out.square().mean() + pull)
        with torch.no_grad():
            for name, parameter in student.named_parameters():
                slow[name].lerp_(parameter, 0.1 if fault == 1 else 0.9)


def clipped(fault: float) -> None:
    """Gradients are clipped by a number that Python has from a tensor."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(torch.randn(ROWS, WIDTH))
        (out / out.abs().max().item()).square().mean().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = sum(gradient.square().sum() for gradient in gradients) ** 0.5
        for gradient in gradients:
            gradient.mul_(0.1 / norm.item() * (fault if step else 1.0))
        optimizer.step()


class InNumPy(nn.Module):
    """Scales by what NumPy makes of its input."""

    def __init__(self, fault: float) -> None:
        super().__init__()
        self.enter, self.leave, self.fault = nn.Linear(WIDTH, 64), nn.Linear(64, 5), fault

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.enter(x))
        scale = np.abs(hidden.detach().numpy()).mean(0) * np.float32(self.fault)
        out: Tensor = self.leave(hidden * torch.from_numpy(scale))
        return out


def through_numpy(fault: float) -> None:
    model = InNumPy(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        update(optimizer, model(torch.randn(ROWS, WIDTH)).square().mean())


def evaluated(fault: float) -> None:
    """Python reads what the model makes of other data between the steps; the loader has nothing to do with it."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        batch = torch.randn(ROWS, WIDTH) * (fault if step == 2 else 1.0)
        update(optimizer, model(batch).square().mean())
        with torch.no_grad():
            model(torch.ones(2, WIDTH)).argmax(-1).tolist()


TRAININGS: dict[str, Callable[[float], None]] = {
    "teacher": distilled,
    "rollout": rolled_out,
    "average": averaged,
    "number": clipped,
    "NumPy": through_numpy,
    "evaluation": evaluated,
}


@cache
def recorded(name: str, fault: float = 1.0, device: str = "") -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    with lockstep.record(path, steps=f"0:{STEPS}"):
        torch.manual_seed(0)
        if device:
            with emulate(device):
                TRAININGS[name](fault)
        else:
            TRAININGS[name](fault)
    return path


def compared(name: str, **candidate: object) -> Comparison:
    return lockstep.compare_recordings(recorded(name), recorded(name, **candidate))  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRAININGS)
def test_other_rounding_of_what_is_computed_out_of_sight_is_no_other_batch(name: str) -> None:
    # given a device that sums in another order, also where nothing is recorded
    found = compared(name, device="reorder")
    # then it agrees, though few tensors are equal
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    assert sum(finding.outcome is Outcome.AGREE for finding in found.findings) > found.compared / 2


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("device", ["", "reorder"])
def test_a_mistake_there_is_named_where_it_comes_into_sight(name: str, device: str) -> None:
    # given numbers that are 5 % larger, or weights that move nine times as far
    found = compared(name, fault=1.05, device=device)
    # then they are the first origin
    assert found.verdict is Verdict.DIVERGED
    origin = found.origins[0]
    phases = {"NumPy": Phase.FORWARD, "number": Phase.FORWARD}
    assert origin.phase is phases.get(name, Phase.DATA)
    assert origin.step == {"NumPy": 0, "evaluation": 2}.get(name, 1)
    says = {
        "NumPy": "which Python computed",
        "evaluation": "the batch",
        "rollout": "the batch",
        "number": "",
    }
    assert says.get(name, "computed where nothing is recorded") in origin.reason


def test_a_batch_behind_an_evaluation_is_held_to_what_a_loader_gives() -> None:
    # given parameters that are bitwise equal, and a batch that is off by less than a deep model would be
    found = compared("evaluation", fault=1.0005)
    # then it is no rounding
    assert (found.verdict, found.origins[0].phase) == (Verdict.DIVERGED, Phase.DATA)
