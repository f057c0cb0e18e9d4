"""A target that enters a step of two runs and is not the same: that of a network which follows the trained one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict

RATE = 0.05


def followed(path: Path, *, by_lerp: bool, rate: float = RATE) -> Path:
    """Record a training whose target network follows the trained one, in one of two spellings."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    with lockstep.record(path, model=nn.ModuleDict({"net": net, "target": target}), steps="0:2"):
        for _ in range(2):
            now, later, action = torch.randn(32, 6), torch.randn(32, 6), torch.randint(0, 4, (32,))
            with torch.no_grad():
                wanted = 0.9 * target(later).max(1).values
            one_hot = F.one_hot(action, 4)
            chosen = net(now).gather(1, action[:, None])[:, 0]
            chosen = chosen if by_lerp else (net(now) * one_hot).sum(1)
            optimizer.zero_grad()
            F.smooth_l1_loss(chosen, wanted).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(target.parameters(), net.parameters(), strict=True):
                    if by_lerp:
                        mine.lerp_(theirs, rate)
                    else:
                        mine.copy_((1 - RATE) * mine + rate * theirs)
    return path


@pytest.mark.parametrize("rate", [RATE, 1.1 * RATE])
def test_a_target_that_enters_otherwise_diverges_where_it_is_taken(
    tmp_path: Path, rate: float
) -> None:
    # given a network that follows another one, and the same in another spelling at some rate
    runs = (
        followed(tmp_path / "ref", by_lerp=True),
        followed(tmp_path / "cand", by_lerp=False, rate=rate),
    )
    found = lockstep.compare_recordings(*runs)

    # then the laws are applied, and a target that is not the same is the origin
    assert found.laws is not None
    assert not found.laws.not_judged
    if rate == RATE:
        assert found.verdict is Verdict.AGREE
    else:
        assert found.verdict is Verdict.DIVERGED
        assert found.origins[0].step == 1
