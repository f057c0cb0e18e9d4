"""Derivatives of calls that only one run makes follow from what enters these, which 16 bits round otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Verdict

Loss = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 24)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x))).float()


def gelu_by_parts(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5))


def by_parts(scores: Tensor, labels: Tensor) -> Tensor:
    return -F.log_softmax(scores, -1).gather(-1, labels[:, None]).mean()


class Weighed(torch.autograd.Function):
    """The scores as they are, and their gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def wrong_behind(scores: Tensor, labels: Tensor) -> Tensor:
    """The same loss, with gradients a tenth too large."""
    weighed: Tensor = Weighed.apply(scores, 1.1)  # type: ignore[no-untyped-call]
    return by_parts(weighed, labels)


def recorded(path: Path, activation: Callable[[Tensor], Tensor], loss: Loss) -> Path:
    torch.manual_seed(0)
    model = Net(activation)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels = torch.arange(128) % 24
    with lockstep.record(path, model=model, steps="0:1"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(torch.randn(128, 32))
        loss(4.0 * scores, labels).backward()
        optimizer.step()
    return path


@pytest.mark.parametrize(("loss", "agrees"), [(by_parts, True), (wrong_behind, False)])
def test_a_loss_by_parts_has_the_gradient_of_what_enters_it(
    tmp_path: Path, loss: Loss, agrees: bool
) -> None:
    # Given scores that bfloat16 rounds otherwise in one run, and the same loss by other calls, or with another gradient
    fused = recorded(tmp_path / "fused", F.gelu, F.cross_entropy)
    parts = recorded(tmp_path / "parts", gelu_by_parts, loss)
    # When they are compared by sketches, then they agree only where the gradient of the scores follows
    found = lockstep.compare_recordings(fused, parts)
    assert (found.verdict is Verdict.AGREE) is agrees
