"""Random numbers that another processor makes of the same bits, with other roundings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.laws import Quantity

_DRAWS = {torch.ops.aten.randn.default, torch.ops.aten.rand.default}


class AnotherProcessor(TorchDispatchMode):
    """What is drawn is off by a share, up and down by turns."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        if function in _DRAWS:
            turns = torch.arange(found.numel()).reshape(found.shape) % 2 * 2 - 1
            found = found * (1 + self.share * turns)
        return found


class Noisy(nn.Module):
    """Adds noise to what it takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn(x.shape)


def recorded(path: Path, share: float | None = None) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(Noisy(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    inputs, targets = torch.randn(8, 16), torch.randn(8, 4)
    processor = nullcontext() if share is None else AnotherProcessor(share)
    with processor, lockstep.record(path, model=net, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("draws") / "reference")


def test_draws_that_are_rounded_otherwise_are_no_other_stream(
    reference: Path, tmp_path: Path
) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", 2.0**-23))
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.breaches == ()


def test_draws_that_are_off_by_more_are(reference: Path, tmp_path: Path) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", 1e-4))
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert found.laws.breaches[0].breach.quantity is Quantity.DRAWN
