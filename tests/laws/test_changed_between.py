"""What both runs change between two steps: weights that are a moving average of others, or that are clipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict

Follow = Callable[[Tensor, Tensor], object]


def by_lerp(mine: Tensor, theirs: Tensor) -> None:
    mine.lerp_(theirs, 0.05)


def by_copy(rate: float) -> Follow:
    return lambda mine, theirs: mine.copy_((1 - rate) * mine + rate * theirs)


def by_clamp(most: float) -> Follow:
    """The weight itself is clipped; there is nothing that follows it."""
    return lambda mine, theirs: theirs.clamp_(-most, most)


def by_minimum(most: float) -> Follow:
    return lambda mine, theirs: theirs.copy_(theirs.clamp(max=most).clamp(min=-most))


def followed(path: Path, follow: Follow, *, is_second: bool = False) -> Path:
    """Record a training towards what a network gives that follows the trained one; the loss has two spellings."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    with lockstep.record(path, model=nn.ModuleDict({"net": net, "target": target}), steps="0:3"):
        for _ in range(3):
            x = torch.randn(16, 8)
            found, wanted = net(x), target(x + 0.01)
            squares = (found - wanted).square().mean()
            optimizer.zero_grad()
            (squares if is_second else F.mse_loss(found, wanted)).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(target.parameters(), net.parameters(), strict=True):
                    follow(mine, theirs)
    return path


def compared(tmp_path: Path, one: Follow, two: Follow) -> Comparison:
    reference = followed(tmp_path / "ref", one)
    return lockstep.compare_recordings(reference, followed(tmp_path / "cand", two, is_second=True))


@pytest.mark.parametrize(
    ("one", "two"), [(by_lerp, by_copy(0.05)), (by_clamp(0.3), by_minimum(0.3))]
)
def test_what_both_change_to_the_same_is_judged_by_the_laws(
    tmp_path: Path, one: Follow, two: Follow
) -> None:
    found = compared(tmp_path, one, two)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()


@pytest.mark.parametrize(
    ("one", "two"), [(by_lerp, by_copy(0.05 * 1.001)), (by_clamp(0.3), by_minimum(0.3 * 1.001))]
)
def test_what_they_change_otherwise_is_not_agreed_upon(
    tmp_path: Path, one: Follow, two: Follow
) -> None:
    found = compared(tmp_path, one, two)
    assert found.verdict is not Verdict.AGREE
    assert found.laws is not None
    assert "changed in both runs" in found.laws.not_judged[0]
