"""A weight that one run changes by calls of its own, where the other does so within the call that takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Verdict


class Rows(nn.Embedding):
    """Rows no longer than a limit, which the weight itself is cut to."""

    def __init__(self, limit: float, *, by_hand: bool) -> None:
        super().__init__(20, 6, max_norm=None if by_hand else limit)
        self.limit = limit
        with torch.no_grad():
            self.weight.mul_(0.5)

    def forward(self, index: Tensor) -> Tensor:
        if self.max_norm is None:
            with torch.no_grad():
                rows = index.unique()
                chosen = self.weight[rows]
                norms = chosen.norm(dim=1, keepdim=True)
                cut = torch.where(
                    norms > self.limit, chosen * (self.limit / (norms + 1e-7)), chosen
                )
                self.weight[rows] = cut
        return functional.embedding(index, self.weight, max_norm=self.max_norm)


def trained(path: Path, save: str, limit: float, *, by_hand: bool) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(Rows(limit, by_hand=by_hand), nn.Linear(6, 3))
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    batches, labels = torch.randint(20, (3, 16)), torch.randint(3, (3, 16))
    with lockstep.record(path, model=model, steps="0:3", save=save):
        for batch, label in zip(batches, labels, strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), label).backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module", params=["sketch", "tensors", "stats"])
def within(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("within") / str(request.param)
    return trained(path, request.param, 1.0, by_hand=False)


def compared(within: Path, tmp_path: Path, limit: float) -> Comparison:
    by_hand = trained(tmp_path / "by hand", within.name, limit, by_hand=True)
    return lockstep.compare_recordings(within, by_hand)


def test_what_the_call_of_the_other_run_does_itself_is_no_origin(
    within: Path, tmp_path: Path
) -> None:
    # Given rows that one run cuts before it looks them up, and the other while it does
    found = compared(within, tmp_path, 1.0)
    # Then they agree
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


def test_rows_that_are_cut_otherwise_are_named(within: Path, tmp_path: Path) -> None:
    # Given rows that are cut to another length before
    found = compared(within, tmp_path, 1.1)
    # Then the module is named, and the calls that do it
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].module) == (0, "0")
    assert any("__setitem__" in one.op for one in found.unaligned_calls)
