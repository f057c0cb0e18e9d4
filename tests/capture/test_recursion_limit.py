"""Modules may lie as deep inside of each other as they may without recording."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep


class Nest(nn.Module):
    """A layer, and another nest inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.inside: Nest | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if self.inside is None else self.inside(x)


def nest(depth: int) -> Nest:
    torch.manual_seed(0)
    outermost = innermost = Nest()
    for _ in range(depth):
        innermost.inside = innermost = Nest()
    return outermost


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 2)).square().sum().backward()
        optimizer.step()


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> Iterator[int]:
    """The recursion limit while a test runs: Python's own, or what torch's compiler raises it to."""
    before, limit = sys.getrecursionlimit(), getattr(request, "param", 1000)
    sys.setrecursionlimit(limit)
    yield limit
    sys.setrecursionlimit(before)


@cache
def deepest(limit: int) -> int:
    """How deep a nest may be here without recording."""
    most, too_deep = 1, limit
    while too_deep - most > 1:
        depth = (most + too_deep) // 2
        try:
            train(nest(depth))
            most = depth
        except RecursionError:
            too_deep = depth
    return most


@pytest.mark.parametrize(
    ("level", "limit"),
    [
        pytest.param("module", 1000, marks=pytest.mark.exhaustive),
        ("api", 1000),
        pytest.param("aten", 1000, marks=pytest.mark.exhaustive),
        ("module", 2000),
    ],
    indirect=["limit"],
)
def test_a_nest_that_runs_bare_runs_recorded(tmp_path: Path, level: str, limit: int) -> None:
    # Given a model whose modules lie as deep as Python lets them
    model, bare = nest(deepest(limit)), nest(deepest(limit))
    train(bare)
    # When it is recorded
    with lockstep.record(tmp_path / "rec", level=level, save="stats"):
        train(model)
    # Then it is trained as it is bare, all of it is there, and the limit is what it was
    assert sys.getrecursionlimit() == limit
    for one, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(one, other)
    rank = lockstep.open(tmp_path / "rec").ranks["rank0"]
    assert [step.complete for step in rank.manifest.steps] == [True, True]
    assert len({call.site.module for call in rank.calls(1)}) > 2 * deepest(limit)


def test_a_model_that_never_stops_hits_its_limit(tmp_path: Path, limit: int) -> None:
    # Given a module that calls itself
    model = Nest()
    object.__setattr__(model, "inside", model)
    # When it is recorded, then it ends as it does bare
    with lockstep.record(tmp_path / "rec", model=model), pytest.raises(RecursionError):
        train(model)
    assert sys.getrecursionlimit() == limit
