"""Windows that start from one state, in the ways that trainings are written."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.screen import headline
from lockstep.store.window_states import read_state

SCRIPT = Path(__file__).with_name("ways_of_training.py")
sys.path.insert(0, str(SCRIPT.parent))
train: Any = importlib.import_module("ways_of_training").train
sys.path.pop(0)

WINDOWS = "0:2,8:10"
ONE_PROCESS = ("accumulate", "scaler", "copy", "averaged", "optimizers")
BY_LIBRARY = ("accelerate", "trainer")
BY_SCRIPT = ("compile", "ddp", "fsdp2")


def recorded(directory: Path, way: str, *, fault: bool = False, **options: Any) -> Path:
    gc.collect()  # what an earlier training of this process left is no part of this one
    with lockstep.record(directory, **options):
        train(way, fault=fault)
    return directory


def judged(reference: Path, candidate: Path) -> Comparison:
    found = compare_recordings(reference, candidate)
    assert [one.not_set for one in found.windows] == [(), ()]
    return found


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("ways")
    return {way: recorded(directory / way, way, windows=WINDOWS) for way in ONE_PROCESS}


@pytest.mark.parametrize("way", ONE_PROCESS)
def test_sound_windows_agree(references: dict[str, Path], tmp_path: Path, way: str) -> None:
    candidate = recorded(
        tmp_path / "cand", way, start_from=references[way], emulate="reorder"
    )  # fmt: skip

    found = judged(references[way], candidate)

    assert found.verdict is Verdict.AGREE
    assert found.steps == (0, 1, 8, 9)
    assert found.step_logs is not None
    assert (found.step_logs.differences, found.step_logs.left) == ((), None)


@pytest.mark.parametrize("way", ONE_PROCESS)
def test_a_late_fault_is_named(references: dict[str, Path], tmp_path: Path, way: str) -> None:
    candidate = recorded(
        tmp_path / "cand", way, fault=True, start_from=references[way], emulate="reorder"
    )

    found = judged(references[way], candidate)

    assert "DIVERGED at step 8, forward of the model (torch.nn.functional.gelu" in headline(found)


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("copy", "Net_1.first.weight"),
        ("averaged", "AveragedModel.n_averaged"),
        ("scaler", "scaler._scale"),
        ("optimizers", "1.last.weight|momentum_buffer"),
    ],
)
def test_what_a_training_holds_beside_is_kept(
    references: dict[str, Path], way: str, name: str
) -> None:
    assert any(name in one for one in read_state(references[way] / "rank0", 8).tensors)


@pytest.mark.parametrize("way", BY_LIBRARY)
def test_windows_of_a_library_agree_and_a_late_fault_is_named(tmp_path: Path, way: str) -> None:
    reference = recorded(tmp_path / "ref", way, windows=WINDOWS)
    options: dict[str, Any] = {"start_from": reference, "emulate": "reorder"}

    sound = judged(reference, recorded(tmp_path / "cand", way, **options))
    found = judged(reference, recorded(tmp_path / "bad", way, fault=True, **options))

    assert sound.verdict is Verdict.AGREE
    assert "DIVERGED at step 8, forward of the model (torch.nn.functional.gelu" in headline(found)


def command(way: str, *words: str) -> list[str]:
    start = [sys.executable]
    if way in ("ddp", "fsdp2"):
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return [*start, str(SCRIPT), way, *words]


def run(tmp_path: Path, output: str, way: str, *options: str, fault: bool = False) -> str:
    """Record a script, and return its output."""
    words = ["--fault"] if fault else []
    ended = subprocess.run(
        [sys.executable, "-m", "lockstep", "record", "-o", output, *options, "--", *command(way, *words)],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.sampled(3)  # each starts a training three times
@pytest.mark.parametrize("way", BY_SCRIPT)
def test_windows_of_a_script_agree_and_a_late_fault_is_named(tmp_path: Path, way: str) -> None:
    # given a reference with windows, and a candidate that is set to their states: sound, then with a fault
    run(tmp_path, "ref", way, "--windows", WINDOWS)
    emulate = (
        () if way == "compile" else ("--emulate", "reorder")
    )  # an emulated device compiles nothing
    told = run(tmp_path, "cand", way, "--start-from", "ref", *emulate)
    run(tmp_path, "bad", way, "--start-from", "ref", *emulate, fault=True)

    # then the sound one agrees in each window
    sound = judged(tmp_path / "ref", tmp_path / "cand")
    assert sound.verdict is Verdict.AGREE
    assert sound.steps == (0, 1, 8, 9)
    # and the fault is named in its window
    found = compare_recordings(tmp_path / "ref", tmp_path / "bad")
    assert found.verdict is Verdict.DIVERGED
    assert [one.verdict for one in found.windows] == [Verdict.AGREE, Verdict.DIVERGED]
    if way == "compile":
        assert "recompiled 0" in told
        assert "frames 1," in told
    else:
        assert "step 8, forward of the model (torch.nn.functional.gelu" in headline(found)
