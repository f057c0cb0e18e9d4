"""Numbers of recordings and comparisons as TensorBoard reads them back from event files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from lockstep.comparison import compare_recordings
from lockstep.reading.recorded_series import losses_of, tensors_of
from lockstep.report.tensorboard import ScalarWriter
from lockstep.store.reader import open_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.plot_command import plot

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="needs tensorboard, of the tensorboard extra",
)

Scalars = dict[str, dict[int, float]]


@pytest.fixture(scope="module")
def paths(lockstep_faulty_pair: FaultyPair) -> list[str]:
    return [str(lockstep_faulty_pair.reference), str(lockstep_faulty_pair.candidate)]


@pytest.fixture(scope="module")
def runs(paths: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "runs"
    done = run(*paths, "--tensorboard", folder)
    assert done.return_value == 1, done.output
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(plot, [*map(str, arguments)], standalone_mode=False)


def read(folder: Path) -> Scalars:
    """All numbers of one run, as TensorBoard has them."""
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: {one.step: one.value for one in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


def test_each_run_has_its_loss_and_its_norms(runs: Path, paths: list[str]) -> None:
    # given both recordings and their comparison as runs of TensorBoard
    assert sorted(one.name for one in runs.iterdir()) == ["candidate", "comparison", "reference"]
    for side, path in zip(("reference", "candidate"), paths, strict=True):
        # then each has the losses of its recording
        recording, found = open_recording(path), read(runs / side)
        loss = next(losses_of(recording))
        assert list(found["loss"]) == loss.steps.tolist()
        assert [*found["loss"].values()] == pytest.approx(loss.values)
        # and the norm of each parameter and gradient
        tensors, _ = tensors_of(recording)
        names = {f"norm of each {one.what}/{one.name}" for one in tensors}
        assert names <= set(found)
        norms = found[f"norm of each {tensors[0].what}/{tensors[0].name}"]
        assert [*norms.values()] == pytest.approx(tensors[0].norm)


def test_a_comparison_says_of_each_step_how_far_apart_it_is(runs: Path, paths: list[str]) -> None:
    pairs = gather(compare_recordings(*paths), *map(open_recording, paths)).pairs
    found = read(runs / "comparison")
    for step in (0, 1):
        worst = np.nanmax(pairs.margin[pairs.step == step])
        assert found["× noise floor/worst of all"][step] == pytest.approx(worst)
    # what agrees is at nothing
    assert found["× noise floor/init"] == {0: 0.0}
    assert found["× noise floor/forward"][0] > 1


def test_of_two_ranks_each_is_a_run(lockstep_two_ranks: Path, tmp_path: Path) -> None:
    done = run(lockstep_two_ranks, "--tensorboard", tmp_path)
    assert done.return_value == 0, done.output
    first, second = (read(tmp_path / rank)["loss"] for rank in ("rank0", "rank1"))
    assert first != second


def test_event_files_are_kept_without_force(runs: Path, paths: list[str]) -> None:
    before = sorted(runs.rglob("events.*"))
    done = run(*paths, "--tensorboard", runs)
    assert "holds event files already" in str(done.exception)
    assert sorted(runs.rglob("events.*")) == before
    # with force they are replaced, and no run is drawn twice
    assert run(*paths, "--tensorboard", runs, "--force").return_value == 1
    assert len(list(runs.rglob("events.*"))) == len(before)


def test_without_tensorboard_a_sentence_says_what_to_install(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    done = run(*paths, "--tensorboard", tmp_path / "runs")
    assert "pip install 'lockstep-numerics[tensorboard]'" in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_any_name_and_any_number_can_be_written(tmp_path: Path) -> None:
    # given a name with half a pair of surrogates, and numbers that are none
    with ScalarWriter(tmp_path) as writer:
        for step, value in enumerate((1.5, float("inf"), float("nan"), 1e300)):
            writer.add("a\ud800/\x1b[31m", value, step=step)
    (found,) = read(tmp_path).items()
    assert found[0] == "a\\ud800/\\x1b[31m"
    assert found[1][0] == 1.5
    assert np.isinf(found[1][1])
    assert np.isnan(found[1][2])
