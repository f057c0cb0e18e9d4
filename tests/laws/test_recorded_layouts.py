"""Kernels that add up in another order where the channels of a tensor lie last in memory, and less exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict


class Net(nn.Module):
    """A batch norm whose sums go over 8192 numbers of each channel, on the order of which the result depends."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.leave, self.factor = nn.Linear(16, 4), factor

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.enter(x))
        return self.leave((F.relu(h) * self.factor).mean((2, 3)))


def recorded(path: Path, layout: torch.memory_format, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    net = Net(factor).to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    batches = [torch.randn(8, 3, 32, 32).add(4).contiguous(memory_format=layout) for _ in range(2)]
    with lockstep.record(path, model=net, steps="0:2"):
        for x in batches:
            optimizer.zero_grad()
            F.cross_entropy(net(x), torch.arange(8) % 4).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("rows") / "reference", torch.contiguous_format)


def compared(reference: Path, candidate: Path) -> Comparison:
    found = lockstep.compare_recordings(reference, candidate)
    assert found.laws is not None
    assert found.laws.steps == 2
    return found


def test_channels_that_lie_last_agree(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, recorded(tmp_path / "candidate", torch.channels_last))
    assert found.laws is not None
    assert (found.verdict, found.laws.breaches) == (Verdict.AGREE, ())


def test_a_result_that_is_off_there_still_diverges(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, recorded(tmp_path / "candidate", torch.channels_last, 1.001))
    assert found.verdict is Verdict.DIVERGED
