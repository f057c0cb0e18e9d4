"""A tensor cut into parts of which one is never used: no gradient arrives there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Verdict


class Gated(nn.Module):
    """The first part of a layer's output, by `chunk` or `split`; `lost` is a share of its gradient that is detached."""

    def __init__(self, *, by_chunk: bool, lost: float = 0.0) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 8), nn.Linear(4, 2)
        self.by_chunk, self.lost = by_chunk, lost

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        if self.lost:
            hidden = hidden.lerp(hidden.detach(), self.lost)
        first, _ = hidden.chunk(2, -1) if self.by_chunk else hidden.split(4, -1)
        out: Tensor = self.leave(first.tanh())
        return out


def recorded(path: Path, *, by_chunk: bool, lost: float = 0.0) -> Path:
    torch.manual_seed(0)
    net = Gated(by_chunk=by_chunk, lost=lost)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with lockstep.record(path, model=net, save="tensors", steps="0:1"):
        net(torch.randn(12, 6)).square().mean().backward()
        optimizer.step()
    return path


@pytest.mark.parametrize("lost", [0.0, 1e-5])
def test_a_part_that_nothing_uses_keeps_no_law_from_being_applied(
    tmp_path: Path, lost: float
) -> None:
    runs = (
        recorded(tmp_path / "chunk", by_chunk=True),
        recorded(tmp_path / "split", by_chunk=False, lost=lost),
    )
    found = lockstep.compare_recordings(*runs)
    assert found.laws is not None
    assert found.laws.not_judged == ()
    assert found.verdict is (Verdict.DIVERGED if lost else Verdict.AGREE)
