"""A gradient that is zero but for rounding, behind optimizers that make a full step of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase
from lockstep.devices.emulation.mode import emulate


class Pooled(nn.Module):
    """Attention over rows; what is added to all scores changes nothing."""

    def __init__(self, behind: float = 1.0) -> None:
        super().__init__()
        self.enter, self.score, self.leave = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 4)
        self.behind = behind

    def forward(self, rows: Tensor) -> Tensor:
        rows = torch.tanh(self.enter(rows))
        weights = torch.softmax(self.score(rows), 1)
        out: Tensor = self.leave((weights * rows).sum(1)) * self.behind
        return out


OPTIMIZERS = {
    "RMSprop": {"momentum": 0.9},
    "NAdam": {},
    "Adamax": {},
    "RAdam": {},
    "Adagrad": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
}


def record(
    path: Path, name: str, behind: float = 1.0, *, clip: float = 0.0, gained: float = 1.0
) -> Path:
    torch.manual_seed(0)
    model = Pooled(behind)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2, **OPTIMIZERS[name])
    batch = torch.randn(6, 32, 8)
    with lockstep.record(path, model=model, steps="0:3"):
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                with torch.no_grad():
                    model.score.weight.grad.mul_(gained)
            optimizer.step()
    return path


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_keeps_and_moves_of_rounding_alone_is_no_origin(
    tmp_path: Path, name: str
) -> None:
    # given a device that sums in another order, so that the bias of the scores gets another rounding error
    reference = record(tmp_path / "reference", name)
    with emulate("reorder"):
        candidate = record(tmp_path / "candidate", name)
    found = lockstep.compare_recordings(reference, candidate)
    # then neither what the optimizer begins to keep nor what it moves is accused
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


def test_a_mistake_beside_it_is_named(tmp_path: Path) -> None:
    # given the same optimizer, and an output that is 5 % larger
    reference = record(tmp_path / "reference", "RMSprop")
    candidate = record(tmp_path / "candidate", "RMSprop", behind=1.05)
    found = lockstep.compare_recordings(reference, candidate)
    assert (found.verdict, found.origins[0].phase) == (Verdict.DIVERGED, Phase.FORWARD)


@pytest.mark.parametrize("gained", [1.0, 1.01])
def test_clipping_hides_no_gradient_behind_one_that_is_rounding_alone(
    tmp_path: Path, gained: float
) -> None:
    # given all gradients clipped by one norm, the bias of the scores among them, as sums in another order make it
    reference = record(tmp_path / "reference", "SGD", clip=0.01)
    with emulate("reorder"):
        candidate = record(tmp_path / "candidate", "SGD", clip=0.01, gained=gained)
    # then they agree with everything judged, and a gradient that is 1 % larger behind the clip is one
    found = lockstep.compare_recordings(reference, candidate)
    assert found.verdict is (Verdict.AGREE if gained == 1.0 else Verdict.DIVERGED)
    assert not found.not_compared or gained != 1.0
