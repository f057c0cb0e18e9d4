"""Two tensors that are no pair, as a step follows without them, explain no gradient that differs beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict

Change = Callable[[Tensor], Tensor]


def kept(rows: Tensor) -> Tensor:
    return rows


def half_detached(rows: Tensor) -> Tensor:
    return 0.5 * rows + 0.5 * rows.detach()


def a_thousandth_detached(rows: Tensor) -> Tensor:
    return rows.lerp(rows.detach(), 1e-3)


def sent_back_smaller(rows: Tensor) -> Tensor:
    if rows.requires_grad:
        rows.register_hook(lambda gradient: 0.7 * gradient)
    return rows


class Scaled(nn.Module):
    """A factor before a product of matrices or after it, and a change of what goes into it."""

    def __init__(self, *, before: bool, change: Change) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 24) / 5)
        self.before, self.change = before, change

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.change(rows)
        return (rows * 0.3) @ self.weight if self.before else (rows @ self.weight) * 0.3


class Net(nn.Module):
    """The change is within the module that has the factor, or it is around it."""

    def __init__(self, *, before: bool, change: Change, around: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 24), nn.Linear(24, 24)
        self.scaled = Scaled(before=before, change=kept if around else change)
        self.change = change if around else kept

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.leave(self.scaled(self.change(self.enter(rows))))
        return out


def trained(
    path: Path, *, before: bool, change: Change = kept, around: bool = False, save: str
) -> Path:
    torch.manual_seed(0)
    model = Net(before=before, change=change, around=around)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with lockstep.record(path, model=model, steps="0:2", save=save):
        for _ in range(2):
            rows, wanted = torch.randn(6, 10, 8), torch.randn(6, 10, 24)
            optimizer.zero_grad()
            F.mse_loss(model(rows), wanted).backward()
            optimizer.step()
    return path


def both_ways(one: Path, other: Path) -> list[Comparison]:
    return [lockstep.compare_recordings(*pair) for pair in ((one, other), (other, one))]


@pytest.mark.parametrize(
    "save", ["sketch", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("stats", "tensors"))]
)  # fmt: skip
def test_a_gradient_lost_beside_a_factor_that_moved_never_agrees(tmp_path: Path, save: str) -> None:
    # Given a factor that stands before a product in one run, and after it in the other
    reference = trained(tmp_path / "reference", before=True, save=save)
    twin = trained(tmp_path / "twin", before=False, save=save)
    # Then the two agree, which ever is the reference
    assert [one.verdict for one in both_ways(reference, twin)] == [Verdict.AGREE] * 2
    # But where a part of the gradient is lost, in the same module or before it, no pair excuses that
    for change in (half_detached, a_thousandth_detached, sent_back_smaller):
        for around in (False, True):
            name = f"{change.__name__}-{around}"
            faulty = trained(tmp_path / name, before=False, change=change, around=around, save=save)
            found = {one.verdict for one in both_ways(reference, faulty)}
            assert Verdict.AGREE not in found, name
