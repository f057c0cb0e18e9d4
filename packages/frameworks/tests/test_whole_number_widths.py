"""Whole numbers of two widths: of two frameworks they are equal by their values, of one they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lockstep
from lockstep.capture.sink import Sink
from lockstep.core.finding import Verdict
from lockstep.core.manifest import Options
from lockstep.core.site import CallKind, Phase, Role

TORCH, JAX, TENSORFLOW = {"torch": "2.13.0"}, {"jax": "0.10.2"}, {"tensorflow": "2.20.0"}


def recorded(folder: Path, packages: dict[str, str], indices: object) -> Path:
    """One call that gives whole numbers."""
    sink = Sink(folder, packages, options=Options(save="tensors"))
    sink.step()
    call = sink.open_call("", "argmax", phase=Phase.FORWARD, kind=CallKind.OPERATOR)
    call.record(Role.INPUT, "args.0", np.ones((3, 4), "float32"), index=0)
    call.record(Role.OUTPUT, "result", np.asarray(indices), index=0)
    sink.end_step()
    sink.close()
    return folder


@pytest.mark.parametrize("other", [JAX, TENSORFLOW], ids=["jax", "tensorflow"])
def test_an_index_of_another_framework_is_equal_by_its_value(
    tmp_path: Path, other: dict[str, str]
) -> None:
    reference = recorded(tmp_path / "ref", TORCH, np.arange(12, dtype="int64"))
    candidate = recorded(tmp_path / "cand", other, np.arange(12, dtype="int32"))
    found = lockstep.compare_recordings(reference, candidate)
    assert found.verdict is Verdict.AGREE
    assert found.compared == 2


def test_another_index_is_told_whatever_its_width(tmp_path: Path) -> None:
    numbers = np.arange(12, dtype="int32")
    numbers[3] += 1
    reference = recorded(tmp_path / "ref", TORCH, np.arange(12, dtype="int64"))
    candidate = recorded(tmp_path / "cand", JAX, numbers)
    assert lockstep.compare_recordings(reference, candidate).verdict is Verdict.DIVERGED


def test_another_width_in_one_framework_is_told(tmp_path: Path) -> None:
    reference = recorded(tmp_path / "ref", JAX, np.arange(12, dtype="int64"))
    candidate = recorded(tmp_path / "cand", JAX, np.arange(12, dtype="int32"))
    assert lockstep.compare_recordings(reference, candidate).verdict is Verdict.DIVERGED


def test_truth_values_are_no_whole_numbers(tmp_path: Path) -> None:
    reference = recorded(tmp_path / "ref", TORCH, np.ones(4, "int64"))
    candidate = recorded(tmp_path / "cand", JAX, np.ones(4, bool))
    assert lockstep.compare_recordings(reference, candidate).verdict is Verdict.DIVERGED
