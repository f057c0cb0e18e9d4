"""What one recorded operator runs in Python: the calls of a warm `torch.mul` at forward, counted and listed by file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from bench import AtMost, Bench, Row

import lockstep

_WARM = 8
"""Multiplications before the one that is counted."""

_CALLS, _FILES = AtMost(50), AtMost(8)


def rows(bench: Bench) -> Iterator[Row]:
    """Count, and print each file with its functions."""
    for save in ("stats", "sketch", "tensors"):
        codes = _walk(bench.directory / save, save)
        files = [code.co_filename for code in codes]
        changes = sum(one != other for one, other in pairwise(files))
        yield Row(f"{save}: Python calls", "", len(codes), bar=_CALLS)
        yield Row(f"{save}: files that they are in", "", len(set(files)), bar=_FILES)
        yield Row(f"{save}: changes from file to file", "", changes)
        if save == "stats":
            print(listed(codes))


def listed(codes: list[CodeType]) -> str:
    """The calls by file, those with most calls first, each with the names of its functions."""
    by_file: dict[str, Counter[str]] = {}
    for code in codes:
        by_file.setdefault(code.co_filename, Counter())[code.co_name] += 1
    ranked = sorted(by_file.items(), key=lambda item: -item[1].total())
    return "\n".join(
        f"  {names.total():4} {Path(file).name}: "
        + ", ".join(f"{name} {count}" for name, count in names.most_common())
        for file, names in ranked
    )


def _walk(target: Path, save: str) -> list[CodeType]:
    """Code of each Python function that runs within the counted multiplication, in order of time."""
    found: list[CodeType] = []
    model = _Scaled(found)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with lockstep.record(target, steps="0:2", save=save):
        for _ in range(2):
            found.clear()
            optimizer.zero_grad()
            model(torch.randn(8, 16)).sum().backward()
            optimizer.step()
    return found


class _Scaled(torch.nn.Module):
    """Multiplies again and again, and has the last multiplication looked at."""

    def __init__(self, found: list[CodeType]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((16,), 1.01))
        self._found = found

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        scale, hearing = self.scale, _hearing(self._found)
        for _ in range(_WARM):
            value = torch.mul(value, scale)
        sys.setprofile(hearing)
        value = torch.mul(value, scale)
        sys.setprofile(None)
        return value


def _hearing(found: list[CodeType]) -> Callable[[FrameType, str, Any], None]:
    def hear(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.append(frame.f_code)

    return hear
