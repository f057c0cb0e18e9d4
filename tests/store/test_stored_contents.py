"""Sketches of many ranks are let go of, and read again when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.store import stored_contents
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import Array, MadeTraining


def off(value: Array) -> Array:
    return value * np.float32(1.001)


@pytest.mark.parametrize("alter", [{}, {"relu": off}])
def test_a_comparison_that_keeps_the_sketches_of_one_chunk_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alter: dict[str, object]
) -> None:
    # given two ranks of two runs, which are equal or differ by a fault on one rank
    both = write_recording(tmp_path / "ref", *[MadeTraining(steps=2, seed=one) for one in (0, 1)])
    altered = MadeTraining(steps=2, seed=1, alter=alter)  # type: ignore[arg-type]
    other = write_recording(tmp_path / "cand", MadeTraining(steps=2), altered)
    found = compare_recordings(both, other)
    assert found.verdict is (Verdict.DIVERGED if alter else Verdict.AGREE)
    # when one chunk of all keeps its sketches, then the comparison is the same
    monkeypatch.setattr(stored_contents, "_MOST_CHUNKS", 1)
    assert repr(compare_recordings(both, other)) == repr(found)
