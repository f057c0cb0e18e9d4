"""A counter that is off by one is told by its two values, many whole numbers are not."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison


class Counting(nn.Module):
    """A layer beside two buffers of whole numbers: one, and three."""

    def __init__(self, one: int, three: int) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 4)
        self.register_buffer("calls", torch.tensor(one))
        self.register_buffer("seen", torch.full((3,), three))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.enter(x)
        return out


def record(path: Path, one: int = 1, three: int = 1) -> Path:
    torch.manual_seed(0)
    model, batch = Counting(one, three), torch.randn(4, 4)
    with lockstep.record(path, model=model, steps="0:1"):
        model(batch).square().mean().backward()
    return path


def reasons(tmp_path: Path, **otherwise: int) -> str:
    reference, candidate = record(tmp_path / "reference"), record(tmp_path / "other", **otherwise)
    found: Comparison = lockstep.compare_recordings(reference, candidate)
    return "\n".join(f"{one.pair.present.name}: {one.reason}" for one in found.findings)


def test_a_counter_is_told_by_its_values(tmp_path: Path) -> None:
    assert "calls is 1 in the reference and 2 in the candidate" in reasons(tmp_path, one=2)


def test_many_whole_numbers_are_not_told_by_one_value(tmp_path: Path) -> None:
    said = reasons(tmp_path, three=2)

    assert "seen does not agree: whole numbers differ" in said
    assert "seen is" not in said
