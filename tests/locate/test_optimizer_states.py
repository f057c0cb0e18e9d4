"""State that an optimizer begins with: lost or changed, it is named before any update; made lazily, nothing is."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.screen import headline

OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda parameters, **kernel: torch.optim.AdamW(parameters, lr=1e-3, **kernel),
    "SGD": lambda parameters, **kernel: torch.optim.SGD(
        parameters, lr=1e-2, momentum=0.9, **kernel
    ),
}
MOMENTUM = {"AdamW": "exp_avg", "SGD": "momentum_buffer"}


@cache
def recorded(
    start: str, name: str = "AdamW", kernel: str = "", lr: float | None = None, steps: str = "0:2"
) -> Path:
    """Steps of a training that goes on from a checkpoint, or from none (`fresh`)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    choice = {kernel: True} if kernel else {}
    optimizer = OPTIMIZERS[name](model.parameters(), **choice)
    if start != "fresh":
        for _ in range(3):
            step(model, optimizer)
        saved = optimizer.state_dict()
        optimizer = OPTIMIZERS[name](model.parameters(), **choice)
        if start != "lost":
            optimizer.load_state_dict(saved)
    if start == "changed":
        for state in optimizer.state.values():
            state[MOMENTUM[name]].mul_(1.5)
    if start == "counted anew":
        for state in optimizer.state.values():
            state["step"].zero_()
    if lr is not None:
        optimizer.param_groups[0]["lr"] = lr
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    with lockstep.record(path, steps=steps):
        for number in range(3):
            if start == "reset" and number == 1:
                optimizer.state.clear()
            step(model, optimizer)
    return path


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs, targets = torch.randn(5, 6), torch.randint(3, (5,))
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def compared(first: Path, second: Path) -> Comparison:
    return lockstep.compare_recordings(first, second)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_state_that_a_resume_lost_comes_first(name: str, side: str) -> None:
    # Given a run that goes on from a checkpoint, and one that lost what its optimizer had
    runs = recorded("resumed", name), recorded("lost", name)
    # When they are compared
    found = compared(*(runs if side == "candidate" else runs[::-1]))
    # Then the one origin is the state that is absent, of all parameters, and no update
    (origin,) = found.origins
    assert (origin.phase, origin.kind, origin.step) == (Phase.INIT, Kind.SETUP, 0)
    assert origin.tensor == f"0.weight|{MOMENTUM[name]}"
    assert origin.reason.startswith(MOMENTUM[name])
    assert (
        f"of 4 parameters {'are' if name == 'AdamW' else 'is'} absent in the {side}"
        in origin.reason
    )
    assert found.inherited


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("lr", [None, 0.0])
def test_state_that_a_resume_changed_is_named(name: str, lr: float | None) -> None:
    # Given a run whose momentum is not that of the checkpoint, also where the learning rate hides it
    found = compared(recorded("resumed", name, lr=lr), recorded("changed", name, lr=lr))
    # When it is compared
    (origin,) = found.origins
    # Then that is the one origin
    assert (found.verdict, origin.phase, origin.kind) == (
        Verdict.DIVERGED,
        Phase.INIT,
        Kind.SETUP,
    )
    assert origin.reason.startswith(f"{MOMENTUM[name]} of 4 parameters differs at the start")


def test_updates_that_are_counted_anew_are_named() -> None:
    (origin,) = compared(recorded("resumed"), recorded("counted anew")).origins
    assert origin.reason.startswith("step of 4 parameters differs at the start")


def test_state_that_is_cleared_between_steps_is_named_there() -> None:
    # Given a run that clears the state of its optimizer after the first recorded step
    (origin,) = compared(recorded("resumed"), recorded("reset")).origins
    # Then it is named at the step that begins without
    assert (origin.step, origin.phase) == (1, Phase.OPTIMIZER)
    assert "absent in the candidate, though the last update left them alike" in origin.reason


def test_state_that_differs_behind_steps_that_were_not_recorded_is_no_agreement() -> None:
    # Given runs that are recorded from their second step on, and whose state differs by more than noise there
    found = compared(
        recorded("resumed", lr=0.0, steps="1:3"), recorded("changed", lr=0.0, steps="1:3")
    )
    # Then it cannot be said whether they agree, and why
    assert found.verdict is Verdict.INCOMPARABLE
    assert "states of the optimizer: 0.weight|exp_avg" in headline(found)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("start", ["fresh", "resumed"])
@pytest.mark.parametrize("kernel", ["", "foreach", "fused"])
def test_sound_starts_are_silent(start: str, name: str, kernel: str) -> None:
    # Given two runs that begin alike, whichever kernel their optimizers choose and whenever they make their state
    found = compared(recorded(start, name, steps="0:3"), recorded(start, name, kernel, steps="0:3"))
    # Then they agree
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
