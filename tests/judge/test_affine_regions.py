"""Factors and constants that one run alone applies: told by the numbers of its calls, in 16 bits too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import lockstep
from lockstep.comparison import Comparison, compare_recordings
from lockstep.core.finding import Kind, Verdict

Function = Callable[[Tensor], Tensor]


class Part(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Parts(nn.Module):
    """Each function between two products of its own."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(32, 64) for _ in functions)
        self.part = nn.ModuleList(Part(one) for one in functions)
        self.last = nn.ModuleList(nn.Linear(64, 4) for _ in functions)

    def forward(self, x: Tensor) -> Tensor:
        ways = zip(self.first, self.part, self.last, strict=True)
        return torch.stack([last(part(first(x))).float() for first, part, last in ways])


def recorded(path: Path, functions: list[Function]) -> Path:
    """One step under bfloat16 autocast, of which statistics alone are kept."""
    torch.manual_seed(0)
    model = Parts(functions)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with lockstep.record(path, model=model, steps="0:1", save="stats"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        optimizer.step()
    return path


def both_ways(
    tmp_path: Path, pairs: dict[str, tuple[Function, Function]]
) -> tuple[Comparison, Comparison]:
    one, other = (
        recorded(tmp_path / name, [pair[side] for pair in pairs.values()])
        for side, name in enumerate(("one", "other"))
    )
    return compare_recordings(one, other), compare_recordings(other, one)


def unchanged(x: Tensor) -> Tensor:
    return x


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(0.997)
    return y


OTHER: dict[str, tuple[Function, Function]] = {
    "a product": (unchanged, lambda x: x * 1.003),
    "a number first": (unchanged, lambda x: 0.997 * x),
    "a quotient": (unchanged, lambda x: x / 1.006),
    "in place": (unchanged, in_place),
    "a tensor of one element": (unchanged, lambda x: x.mul(torch.tensor(1.003))),
    "a part of itself": (unchanged, lambda x: x + 0.004 * x),
    "a constant": (unchanged, lambda x: x + 0.002),
    "a constant with a factor": (unchanged, lambda x: torch.add(x, 0.001, alpha=2)),
    "there and not quite back": (unchanged, lambda x: 1.0 - (1.003 - x)),
    "after views and casts": (unchanged, lambda x: (x.t().float() * 1.003).bfloat16().t()),
    "another factor": (lambda x: x.neg().neg() * 3.0, lambda x: x / 0.332),
}

SAME: dict[str, tuple[Function, Function]] = {
    "a power of two": (unchanged, lambda x: (x * 0.5) * 2.0),
    "there and back": (unchanged, lambda x: ((x + 0.25) * 0.3 - 0.075) / 0.3),
    "the other way round": (unchanged, lambda x: 1.0 - (1.0 - x)),
    "the sign twice": (unchanged, lambda x: -1.0 * (x * -1.0)),
    "a reciprocal": (lambda x: x.clone().div(3.0), lambda x: x * (1.0 / 3.0)),
    "in halves": (unchanged, lambda x: 0.5 * x + 0.5 * x),
    "a number from a tensor": (
        lambda x: x.mul(float(np.float32(0.7)) * 2.0),
        lambda x: x.div(float(np.float32(1.0 / 1.4))),
    ),
}


def test_the_numbers_of_calls_tell_another_factor_or_constant(tmp_path: Path) -> None:
    # Given trainings of which one multiplies or adds something, by less than rounding to bfloat16 hides
    for found in both_ways(tmp_path, OTHER):
        # When they are compared by statistics alone, then each is named, and by which numbers
        numbers = {one.module.split(".")[1] for one in found.origins if one.module}
        assert [name for n, name in enumerate(OTHER) if str(n) not in numbers] == []
        assert {one.kind for one in found.origins} == {Kind.FAULT}
        assert any("1.003 x" in one.reason for one in found.origins)


def test_the_same_factor_by_other_numbers_is_none(tmp_path: Path) -> None:
    # Given trainings that multiply and add the same, by other calls, when they are compared, then nothing is named
    for found in both_ways(tmp_path, SAME):
        assert [one.reason for one in found.origins] == []
        assert found.verdict is Verdict.AGREE
