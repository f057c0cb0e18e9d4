"""What nothing trained depends on is no origin; what anything trained depends on, in a later step at the latest, is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.remarks import On, Remark


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)))
        return out


def recorded(path: Path, kind: str, factor: float) -> Path:
    """Three steps, in which a number that `kind` says is made times a factor."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept, average = torch.ones(()), [one.detach().clone() for one in model.parameters()]
    with lockstep.record(path, steps="0:3", save="tensors"):
        for _ in range(3):
            rows, classes = torch.randn(8, 6), torch.randint(0, 3, (8,))
            optimizer.zero_grad()
            outputs = model(rows)
            loss = cross_entropy(outputs, classes)
            if kind == "accuracy":
                ((outputs.argmax(1) == classes).float().mean() * factor).item()
            if kind in ("total", "same operator"):
                (kept + loss.detach() * factor).sqrt().item()
            if kind == "weighs":
                loss, kept = loss * kept, loss.detach() * factor
            if kind == "same operator":
                loss = loss * factor
            loss.backward()
            if kind == "norm":
                norms = [one.grad.norm() for one in model.parameters() if one.grad is not None]
                (torch.stack(norms).norm() * factor).item()
            if kind == "buffer":
                model.seen.copy_(loss.detach() * factor)
            if kind == "average":
                own = zip(average, model.parameters(), strict=True)
                average = [0.9 * mean + one.detach() * factor for mean, one in own]
            if kind == "view":
                model.last.weight.data.view(-1)[:4].mul_(factor)
            optimizer.step()
    return path


@pytest.mark.parametrize("kind", ["accuracy", "total", "norm"])
def test_a_number_that_is_only_shown_is_no_origin(tmp_path: Path, kind: str) -> None:
    runs = [recorded(tmp_path / str(factor), kind, factor) for factor in (1.0, 1.5)]
    found = lockstep.compare_recordings(*runs)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    (note,) = (one for one in found.notes if isinstance(one, Remark) and one.facts.why is On.BESIDE)
    assert "nothing trained depends on them" in str(note)


@pytest.mark.parametrize("kind", ["weighs", "same operator", "buffer", "average", "view"])
def test_a_number_that_anything_trained_is_made_of_is_an_origin(tmp_path: Path, kind: str) -> None:
    runs = [recorded(tmp_path / str(factor), kind, factor) for factor in (1.0, 1.5)]
    found = lockstep.compare_recordings(*runs)
    assert found.verdict is Verdict.DIVERGED
    assert "mul" in found.origins[0].op
