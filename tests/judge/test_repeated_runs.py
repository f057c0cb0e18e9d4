"""Operators whose additions come in another order each time, beside the reference recorded twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.core.finding import Comparison, Verdict

ROWS, TERMS = 16, 4096


class Unordered(TorchDispatchMode):
    """A device that adds what goes to one place in an order of its own, drawn for each run, times a factor."""

    def __init__(self, seed: int, factor: float) -> None:
        super().__init__()
        self._generator, self._factor = torch.Generator().manual_seed(seed), factor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if "index_put" not in func._schema.name:
            return func(*args, **(kwargs or {}))
        target, (index,), values, *rest = args
        order = torch.randperm(len(index), generator=self._generator)
        return func(target, (index[order],), values[order] * self._factor, *rest)


class Sums(nn.Module):
    """Adds up terms that cancel to a thousandth of their size: the order decides on the last digits."""

    def __init__(self, results: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 8), nn.Linear(8, results)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        sums = torch.zeros(ROWS, 8)
        sums.index_put_((places,), self.enter(x) * SIGNS, accumulate=True)
        return self.leave(sums)


SIGNS = torch.tensor([1000.0, -1000.0]).repeat(TERMS // 2)[:, None]


def recorded(
    path: Path, seed: int, factor: float = 1.0, *, results: int = 1, of_bias: float = 1.0
) -> Path:
    """Record a step; `of_bias` is what the gradient of the last bias is taken times."""
    torch.manual_seed(0)
    net = Sums(results)
    if of_bias != 1.0:
        net.leave.bias.register_hook(lambda gradient: gradient * of_bias)
    x = torch.randn(TERMS // 2, 4).repeat_interleave(2, dim=0)
    x[::2] *= 1.001
    places = torch.arange(TERMS // 2).remainder(ROWS).repeat_interleave(2)
    optimizer = torch.optim.SGD(net.parameters(), 1e-9)
    with lockstep.record(path, model=net, steps="0:1", save="sketch"), Unordered(seed, factor):
        net(x, places).square().mean().backward()
        optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("order") / "reference", 1)


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("order") / "again", 2)


def said_of_sums(found: Comparison) -> str:
    (one,) = (
        one
        for one in found.findings
        if one.pair.present.site.op.endswith("index_put_")
        and one.pair.present.role.value == "output"
    )
    return str(one.reason)


def test_another_order_is_no_fault_where_the_reference_moves_as_far(
    reference: Path, again: Path, tmp_path: Path
) -> None:
    candidate = recorded(tmp_path / "candidate", 3)
    # given a difference that is more than a sum in order may show
    alone = lockstep.compare_recordings(reference, candidate)
    assert alone.verdict is Verdict.DIVERGED
    assert "recorded twice tells (--noise)" in said_of_sums(alone)
    # when the reference was recorded twice
    found = lockstep.compare_recordings(reference, candidate, noise=again)
    # then it is none, and the reason names what nobody orders
    assert found.verdict is Verdict.AGREE
    assert "order not fixed: index_put_ (atomic additions)" in said_of_sums(found)


def test_a_fault_at_such_an_operator_is_not_covered(
    reference: Path, again: Path, tmp_path: Path
) -> None:
    candidate = recorded(tmp_path / "candidate", 3, factor=1.001)
    found = lockstep.compare_recordings(reference, candidate, noise=again)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op == "torch.Tensor.index_put_"
    assert "from run to run" in said_of_sums(found)


def test_few_numbers_are_held_against_a_run_in_which_they_may_hardly_have_moved(
    tmp_path: Path,
) -> None:
    # given gradients of four numbers, and the reference recorded twice
    reference, again = (recorded(tmp_path / str(seed), seed, results=4) for seed in (1, 2))
    # then other orders are no fault, and one part in a hundred is
    for seed in (3, 4):
        sound = recorded(tmp_path / str(seed), seed, results=4)
        assert lockstep.compare_recordings(reference, sound, noise=again).verdict is Verdict.AGREE
    fault = recorded(tmp_path / "fault", 5, results=4, of_bias=1.01)
    found = lockstep.compare_recordings(reference, fault, noise=again)
    assert found.verdict is Verdict.DIVERGED
    assert "leave.bias" in str(found.origins[0])
