"""Parameters that a script updates by hand, beside an optimizer that does the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase

RATE, DECAY = 0.1, 0.01
Update = Callable[[nn.Module, int], None]


def in_place(net: nn.Module, step: int, rate: float = RATE) -> None:
    with torch.no_grad():
        for one in net.parameters():
            assert one.grad is not None
            one -= rate * (one.grad + DECAY * one)


def through_data(net: nn.Module, step: int) -> None:
    for one in net.parameters():
        assert one.grad is not None
        one.data.mul_(1 - RATE * DECAY)
        one.data.add_(one.grad, alpha=-RATE)


def by_copy(net: nn.Module, step: int) -> None:
    with torch.no_grad():
        for one in net.parameters():
            assert one.grad is not None
            one.copy_(one - RATE * one.grad - RATE * DECAY * one)


def too_far(net: nn.Module, step: int) -> None:
    in_place(net, step, RATE * 1.001)


def too_far_later(net: nn.Module, step: int) -> None:
    in_place(net, step, RATE * 1.001 if step else RATE)


def short_of_one(net: nn.Module, step: int) -> None:
    """The last bias takes nine tenths of its update."""
    *_, last = net.parameters()
    kept = last.detach().clone()
    in_place(net, step)
    with torch.no_grad():
        last.lerp_(kept, 0.1)


def recorded(path: Path, update: Update | None) -> Path:
    """Record a training; without an update, that of an optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 4))
    optimizer = torch.optim.SGD(net.parameters(), RATE, weight_decay=DECAY)
    with lockstep.record(path, model=net, steps="0:3"):
        for step in range(3):
            x, y = torch.randn(16, 8), torch.randn(16, 4)
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            if update is None:
                optimizer.step()
            else:
                update(net, step)
    return path


def compared(tmp_path: Path, one: Update | None, two: Update | None) -> Comparison:
    return lockstep.compare_recordings(
        recorded(tmp_path / "one", one), recorded(tmp_path / "two", two)
    )


@pytest.mark.parametrize(
    ("one", "two"),
    [(None, in_place), (None, through_data), (None, by_copy), (in_place, through_data)],
)
def test_the_same_update_by_hand_agrees_by_the_laws(
    tmp_path: Path, one: Update | None, two: Update | None
) -> None:
    found = compared(tmp_path, one, two)
    assert found.laws is not None
    assert found.laws.not_judged == ()
    assert found.verdict is Verdict.AGREE


@pytest.mark.parametrize("update", [too_far, too_far_later, short_of_one])
@pytest.mark.parametrize("reference", [None, through_data])
def test_another_update_by_hand_diverges(
    tmp_path: Path, reference: Update | None, update: Update
) -> None:
    found = compared(tmp_path, reference, update)
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert found.laws.breaches
    assert found.origins[0].step == (1 if update is too_far_later else 0)
    assert found.origins[0].phase in (Phase.OPTIMIZER, Phase.BACKWARD)
