"""Recording at level module where a step is nothing but overhead: a thousand small operators."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import trainings
from bench import AtMost, Bench, Row, ratio_row, seconds
from torch import nn

import lockstep

_STEPS = 12
_BAR = AtMost(1.5)


def rows(bench: Bench) -> Iterator[Row]:
    """Blocks of bare steps and recordings of as many in turn."""
    count = bench.size.small_operations
    yield _row(bench, f"{count} operators in 4 modules", trainings.Operations(count), _BAR)
    modules = trainings.SmallModules(count)
    yield _row(bench, f"{count} modules of one operator (the harder reading)", modules, _BAR)
    yield _row(bench, f"{count} modules, Linear(16) and ReLU in turn", _layers(count), _BAR)


def _layers(count: int) -> nn.Module:
    """A tiny model as many would build it; half of its modules have two parameters each."""
    return nn.Sequential(
        *(nn.ReLU() if number % 2 else nn.Linear(16, 16) for number in range(count))
    )


def _row(bench: Bench, what: str, model: nn.Module, bar: AtMost) -> Row:
    step, target = trainings.tiny_step(model), bench.directory / "small"
    bare: list[float] = []
    recorded: list[float] = []
    step()
    for _ in range(2 * bench.rounds):
        bare += [seconds(step) for _ in range(_STEPS)][1:-1]
        with lockstep.record(target, steps=f"0:{_STEPS}", level="module"):
            recorded += [seconds(step) for _ in range(_STEPS)][1:-1]
        shutil.rmtree(target)
    return ratio_row(
        what, recorded, bare, bar=bar, note="first and last step of each block left out"
    )
