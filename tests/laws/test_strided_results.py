"""Results that lie in memory with gaps, as a part of a larger tensor does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict


class Net(nn.Module):
    """A sigmoid as torch has it, or as one part of a softmax over two."""

    def __init__(self, *, of_two: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(12, 32), nn.Linear(32, 8)
        self.of_two, self.factor = of_two, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.enter(x)
        if self.of_two:
            h = torch.stack((h, torch.zeros_like(h)), -1).softmax(-1)[..., 0]
        else:
            h = h.sigmoid()
        result: torch.Tensor = self.leave(h * self.factor if self.factor != 1.0 else h)
        return result


def recorded(path: Path, save: str, *, of_two: bool, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    net = Net(of_two=of_two, factor=factor)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with lockstep.record(path, model=net, steps="0:2", save=save):
        for _ in range(2):
            x, y = torch.randn(8, 16, 12), torch.randn(8, 16, 8)
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("save", ["sketch", "program", "tensors"])
def test_a_part_of_a_larger_tensor_is_no_difference(tmp_path: Path, save: str) -> None:
    # given a sigmoid, and one that is every second number of a softmax
    reference = recorded(tmp_path / "reference", save, of_two=False)
    # then the two are one program
    found = lockstep.compare_recordings(
        reference, recorded(tmp_path / "candidate", save, of_two=True)
    )
    assert found.verdict is Verdict.AGREE, found.origins
    # and one whose result is off is not
    off = lockstep.compare_recordings(
        reference, recorded(tmp_path / "off", save, of_two=True, factor=1.001)
    )
    assert off.verdict is Verdict.DIVERGED
