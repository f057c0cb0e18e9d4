"""A step outside of the chosen ones, with the recorder armed.

One per cent is far below the scatter of a single step, so blocks of bare and armed steps alternate, and the figure is
the median of the ratios of neighbouring blocks. The same is done with bare blocks on both sides: how far that is from
1 is what the harness can resolve.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import trainings
from bench import AtMost, Bench, Row, seconds

import lockstep

_STEPS = 16
_BAR = AtMost(1.01)

Block = Callable[[], AbstractContextManager[object]]


def rows(bench: Bench) -> Iterator[Row]:
    """Alternate blocks of a small GPT-2's steps."""
    small = replace(bench.size, layers=2, width=64, heads=2, vocabulary=64, batch=2, tokens=16)
    step, target = trainings.gpt2(small), bench.directory / "armed"
    for _ in range(_STEPS):
        step()
    ratios: dict[str, list[float]] = {"armed": [], "bare": []}
    for number in range(bench.size.armed_blocks):
        blocks: dict[str, Block] = {"armed": lambda: _armed(target), "bare": nullcontext}
        for name in list(blocks)[:: 1 if number % 2 else -1]:
            ratios[name].append(_ratio(step, blocks[name], first=number % 4 < 2))
            shutil.rmtree(target, ignore_errors=True)
    yield _row("armed, no step chosen yet", ratios["armed"], _BAR)
    yield _row("the same with bare steps on both sides", ratios["bare"], None)


def _armed(target: Path) -> AbstractContextManager[object]:
    return lockstep.record(target, steps="1000000")


def _ratio(step: trainings.Step, block: Block, *, first: bool) -> float:
    """Median step in the block over median bare step beside it, in either order."""
    times = {}
    for is_block in (first, not first):
        with block() if is_block else nullcontext():
            step()
            times[is_block] = statistics.median(seconds(step) for _ in range(_STEPS))
    return times[True] / times[False]


def _row(what: str, ratios: list[float], bar: AtMost | None) -> Row:
    low, middle, high = statistics.quantiles(ratios, n=4)
    spread = f"quartiles {low:.4f} to {high:.4f} of {len(ratios)} blocks of {_STEPS} steps"
    return Row(what, "x", middle, None, bar, spread)
