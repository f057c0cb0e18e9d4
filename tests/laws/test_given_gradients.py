"""A backward pass that begins with a gradient of the script's own, beside a loss that is weighed and summed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase

ROWS = 320
Backward = Callable[[Tensor, Tensor], None]


def by_sum(losses: Tensor, weights: Tensor) -> None:
    (losses * weights).sum().backward()


def by_gradient(losses: Tensor, weights: Tensor) -> None:
    losses.backward(gradient=weights)


def by_gradient_made(losses: Tensor, weights: Tensor) -> None:
    losses.backward(weights / 2 + weights / 2)


def by_scalar_gradient(losses: Tensor, weights: Tensor) -> None:
    (losses * weights).mean().backward(torch.tensor(float(ROWS)))


def off(losses: Tensor, weights: Tensor) -> None:
    losses.backward(gradient=weights * 1.001)


def off_in_one(losses: Tensor, weights: Tensor) -> None:
    weights = weights.clone()
    weights[3] *= 1.01
    losses.backward(gradient=weights)


def scalar_off(losses: Tensor, weights: Tensor) -> None:
    (losses * weights).mean().backward(torch.tensor(ROWS * 1.001))


def recorded(path: Path, backward: Backward) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 4))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    with lockstep.record(path, model=net, steps="0:2"):
        for _ in range(2):
            x, y, weights = torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,)), torch.rand(ROWS)
            optimizer.zero_grad()
            backward(F.cross_entropy(net(x), y, reduction="none"), weights / ROWS)
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("reference") / "ref", by_sum)


@pytest.mark.parametrize("backward", [by_gradient, by_gradient_made, by_scalar_gradient])
def test_a_given_gradient_is_a_weighed_sum(
    reference: Path, tmp_path: Path, backward: Backward
) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", backward))
    assert found.laws is not None
    assert found.laws.not_judged == ()
    assert found.verdict is Verdict.AGREE


@pytest.mark.parametrize("backward", [off, off_in_one, scalar_off])
def test_another_gradient_diverges(reference: Path, tmp_path: Path, backward: Backward) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", backward))
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert found.laws.breaches
    assert found.origins[0].step == 0
    assert found.origins[0].phase in (Phase.FORWARD, Phase.BACKWARD)
