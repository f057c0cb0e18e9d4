"""A tensor that begins as unwritten memory and is filled piece by piece, beside one that is put together by `cat`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase

WIDTH = 24
Join = Callable[[Tensor, Tensor], Tensor]


def by_cat(one: Tensor, two: Tensor) -> Tensor:
    return torch.cat([one, two], -1)


def piece_by_piece(one: Tensor, two: Tensor) -> Tensor:
    joined = torch.empty(*one.shape[:-1], 2 * WIDTH)
    joined[..., :WIDTH] = one
    joined[..., WIDTH:] = two
    return joined


def off(one: Tensor, two: Tensor) -> Tensor:
    return piece_by_piece(one, two * 1.001)


def short_of_gradient(one: Tensor, two: Tensor) -> Tensor:
    return piece_by_piece(one, two.lerp(two.detach(), 1e-3))


class Halves(nn.Module):
    """Two layers side by side, and one after both."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self.one, self.two, self.leave = (
            nn.Linear(8, WIDTH),
            nn.Linear(8, WIDTH),
            nn.Linear(2 * WIDTH, 4),
        )
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.join(self.one(x), self.two(x).tanh()))
        return out


def recorded(path: Path, join: Join) -> Path:
    torch.manual_seed(0)
    net = Halves(join)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    with lockstep.record(path, model=net, steps="0:2"):
        for _ in range(2):
            x, y = torch.randn(16, 8), torch.randn(16, 4)
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, join: Join) -> Comparison:
    reference = recorded(tmp_path / "ref", by_cat)
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", join))
    assert found.laws is not None
    return found


def test_a_tensor_filled_piece_by_piece_agrees_by_the_laws(tmp_path: Path) -> None:
    found = compared(tmp_path, piece_by_piece)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()


@pytest.mark.parametrize(
    ("join", "phase"), [(off, Phase.FORWARD), (short_of_gradient, Phase.BACKWARD)]
)
def test_a_mistake_in_one_piece_diverges(tmp_path: Path, join: Join, phase: Phase) -> None:
    found = compared(tmp_path, join)
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].phase) == (0, phase)
