"""An operator that also changes a parameter in place, which the other run's operator does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison
from lockstep.report.comparison.screen import render_comparison

Look = Callable[[Tensor, Tensor], Tensor]


def renormalised(rows: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(rows, weight, max_norm=1.0)


def indexed(rows: Tensor, weight: Tensor) -> Tensor:
    return weight[rows]


def plain(rows: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(rows, weight)


def doubled(rows: Tensor, weight: Tensor) -> Tensor:
    return 2.0 * weight[rows]


class Net(nn.Module):
    """A table of rows longer than 1, and a layer."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.table, self.look, self.leave = nn.Parameter(torch.randn(12, 8)), look, nn.Linear(8, 3)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.leave(self.look(rows, self.table))
        return out


def record(path: Path, look: Look) -> Path:
    torch.manual_seed(0)
    model = Net(look)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randint(12, (2, 16))
    with lockstep.record(path, model=model, steps="0:2"):
        for rows in data:
            optimizer.zero_grad()
            functional.cross_entropy(model(rows), rows % 3).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, reference: Look, candidate: Look) -> Comparison:
    return lockstep.compare_recordings(
        record(tmp_path / "reference", reference), record(tmp_path / "candidate", candidate)
    )


@pytest.mark.parametrize("swapped", [False, True], ids=["missing in the candidate", "added there"])
@pytest.mark.parametrize("other", [indexed, plain])
def test_what_an_operator_also_changes_is_named_once(
    tmp_path: Path, other: Look, swapped: bool
) -> None:
    # Given sketches of a lookup that renormalises its table in one run only
    looks = (other, renormalised) if swapped else (renormalised, other)
    found = compared(tmp_path, *looks)
    # Then the lookup is the one origin, and the table's other content before its update is no second one
    (origin,) = found.origins
    side, without = ("candidate", "reference") if swapped else ("reference", "candidate")
    assert "torch.nn.functional.embedding(max_norm=1.0, norm_type=2.0) at" in origin.reason
    assert f"also changes table in place in the {side}, which nothing does in the {without}" in (
        origin.reason
    )
    assert "(0 calls)" not in render_comparison(found).plain


def test_a_lookup_that_differs_and_changes_nothing_is_not_said_to(tmp_path: Path) -> None:
    found = compared(tmp_path, plain, doubled)
    assert found.origins
    assert "in place" not in render_comparison(found).plain


def test_what_both_runs_change_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, renormalised, renormalised).origins == ()
