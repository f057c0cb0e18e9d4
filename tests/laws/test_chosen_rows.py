"""Rows that the data choose: experts that are called with their own rows, or with all of them and a weight of zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase


class Experts(nn.Module):
    """A gate chooses an expert for each row; `kept` is the share of the gate's gradient that is not detached."""

    def __init__(self, *, by_rows: bool, kept: float = 1.0) -> None:
        super().__init__()
        self.gate, self.by_rows, self.kept = nn.Linear(8, 3, bias=False), by_rows, kept
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        if self.kept < 1:
            weights = weights.lerp(weights.detach(), 1 - self.kept)
        weight, chosen = weights.topk(1, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if self.by_rows:
                rows = (chosen[:, 0] == number).nonzero()[:, 0]
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows])
            else:
                out = out + expert(x) * weight * (chosen == number)
        return x + out


def recorded(path: Path, *, by_rows: bool, kept: float = 1.0) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), Experts(by_rows=by_rows, kept=kept), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    batches = torch.Generator().manual_seed(1)
    with lockstep.record(path, model=net, save="tensors", steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(12, 6, generator=batches)).square().mean().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def by_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("chosen") / "rows", by_rows=True)


def test_experts_called_with_their_rows_or_with_all_agree(by_rows: Path, tmp_path: Path) -> None:
    found = lockstep.compare_recordings(by_rows, recorded(tmp_path / "all", by_rows=False))
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    assert found.laws is not None
    assert found.laws.not_judged == ()


def test_a_share_of_the_gates_gradient_that_is_lost_is_named(by_rows: Path, tmp_path: Path) -> None:
    wrong = recorded(tmp_path / "wrong", by_rows=False, kept=0.95)
    (origin, *_) = lockstep.compare_recordings(by_rows, wrong).origins
    assert (origin.module, origin.phase) == ("1.gate", Phase.BACKWARD)
