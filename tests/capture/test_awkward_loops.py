"""Loops that do to torch what few expect: recorded at each weight and level, each keeps every bit and all its steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from awkward_loops import LOOPS
from harness import check

LEVELS, SAVES = ("module", "api", "aten"), ("stats", "sketch", "tensors")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each loop at a level and a weight, which turn from loop to loop, or at all of them (`--every-way`)."""
    if "save" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--every-way")
    metafunc.parametrize(
        ("name", "level", "save"),
        [
            (name, level, save)
            for turn, name in enumerate(LOOPS)
            for row, level in enumerate(LEVELS)
            for column, save in enumerate(SAVES)
            if every or (row, column) == (turn % len(LEVELS), turn // len(LEVELS) % len(SAVES))
        ],
    )


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_a_recorded_loop_keeps_every_bit(name: str, level: str, save: str, tmp_path: Path) -> None:
    # given a loop, when it runs bare and recorded, then both end alike, nothing of ours stays in torch,
    recording = check(LOOPS[name], tmp_path / "rec", level=level, save=save)
    # and all its steps are there
    (rank,) = recording.ranks.values()
    assert [step.complete for step in rank.manifest.steps] == [True, True]
    assert rank.content_count > 0


def test_loops_enough() -> None:
    assert len(LOOPS) >= 40
