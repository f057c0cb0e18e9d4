"""A recording that a NumPy training writes by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lockstep
from lockstep.capture.sink import Sink
from lockstep.core.errors import OutputExistsError
from lockstep.core.finding import Verdict
from lockstep.core.manifest import Options
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline

VERSIONS = {"numpy": np.__version__}


def train(path: Path, *, wrong: str = "", steps: str = "0:2", save: str = "sketch") -> None:
    """Trains one layer and a tanh on squared errors; `wrong` names the place that computes something else."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(6, 3)).astype("f4")
    with Sink(path, VERSIONS, options=Options(steps=steps, save=save)) as sink:
        for _ in range(3):
            x = random.normal(size=(8, 6)).astype("f4")
            sink.step()
            sink.parameters({"fc.weight": weight}, {"fc": "Linear"})
            fc = sink.open_call("fc", "numpy.matmul", arguments={"out": None})
            fc.record(Role.INPUT, "args.0", x, index=0, axes="NC")
            fc.record(Role.INPUT, "fc.weight", weight, index=1, argument="args.1")
            hidden = x @ weight
            fc.record(Role.OUTPUT, "result", hidden)
            act = sink.open_call("act", "numpy.tanh")
            act.record(Role.INPUT, "args.0", hidden)
            result = np.tanh(hidden) * np.float32(1.001 if wrong == "tanh" else 1)
            act.record(Role.OUTPUT, "result", result)
            sink.loss((result**2).mean())
            into = 2 * result / result.size
            act.record(Role.GRAD_OUTPUT, "result", into, phase=Phase.BACKWARD)
            into = into * (1 - result**2)
            act.record(Role.GRAD_INPUT, "args.0", into, phase=Phase.BACKWARD)
            fc.record(Role.GRAD_OUTPUT, "result", into, phase=Phase.BACKWARD)
            gradient = x.T @ into
            fc.record(Role.PARAM_GRAD, "fc.weight", gradient, index=1, phase=Phase.BACKWARD)
            update = sink.open_call(
                "fc", "numpy.SGD", kind=CallKind.OPTIMIZER, phase=Phase.OPTIMIZER
            )
            update.record(Role.PARAM, "fc.weight", weight)
            update.record(Role.PARAM_GRAD, "fc.weight", gradient)
            weight = weight - np.float32(0.2 if wrong == "update" else 0.1) * gradient
            update.record(Role.PARAM_AFTER, "fc.weight", weight)


@pytest.mark.parametrize(("wrong", "op"), [("tanh", "numpy.tanh"), ("update", "numpy.SGD")])
def test_the_planted_operator_is_named_with_its_line(tmp_path: Path, wrong: str, op: str) -> None:
    train(tmp_path / "ref")
    train(tmp_path / "cand", wrong=wrong)
    found = lockstep.compare_recordings(tmp_path / "ref", tmp_path / "cand")
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].op) == (0, op)
    assert "test_sink.py:" in found.origins[0].source


def test_equal_trainings_agree_and_say_that_nothing_was_run_again(tmp_path: Path) -> None:
    for name in ("ref", "cand"):
        train(tmp_path / name, save="tensors")
    found = lockstep.compare_recordings(tmp_path / "ref", tmp_path / "cand")
    assert found.verdict is Verdict.AGREE
    assert found.not_run_again == "numpy"
    assert found.judged_by == "error-model"


def test_a_sink_that_is_told_of_no_step_behind_the_chosen_ones_does_not_say_how_many_there_were(
    tmp_path: Path,
) -> None:
    # given a framework whose taps are taken out after the chosen steps
    with Sink(tmp_path / "ref", {"numpy": np.__version__}, options=Options(steps="0")) as sink:
        sink.step()
        sink.loss(np.float32(1.0))
        sink.counts_to_the_end = False
    # then nobody takes the chosen steps for the whole training
    assert lockstep.open(tmp_path / "ref").ranks["rank0"].manifest.trained is None


def test_a_recording_holds_what_was_recorded_in_the_chosen_steps(tmp_path: Path) -> None:
    train(tmp_path / "ref", steps="1", save="tensors")
    rank = lockstep.open(tmp_path / "ref").ranks["rank0"]
    assert (rank.complete_steps, rank.manifest.trained) == ((1,), 3)
    calls = rank.calls(1)
    assert [call.kind.value for call in calls] == [
        "init",
        "operator",
        "operator",
        "loss",
        "optimizer",
    ]
    fc = calls[1]
    assert fc.arguments == {"out": None, "axes.args.0": "NC"}
    assert [one.role.value for one in fc.records] == [
        "input", "input", "output", "grad_output", "param_grad",
    ]  # fmt: skip
    np.testing.assert_array_equal(fc.records[2].load(), fc.records[0].load() @ fc.records[1].load())


def test_other_dtypes_are_measured_and_texts_left_out(tmp_path: Path) -> None:
    arrays = {
        "half": np.arange(5000, dtype="f2"),
        "brain": np.arange(5000).astype(ml_dtypes.bfloat16),
        "whole": np.arange(5000),
        "mask": np.arange(4) > 1,
        "swapped": np.arange(4, dtype=">f4"),
        "text": np.array(["a"]),
    }
    with Sink(tmp_path / "ref", VERSIONS, options=Options(save="tensors")) as sink:
        sink.step()
        call = sink.open_call("", "numpy.of")
        for name, array in arrays.items():
            call.record(Role.OUTPUT, name, array)
    records = lockstep.open(tmp_path / "ref").ranks["rank0"].calls(0)[0].records
    assert [one.name for one in records] == ["half", "brain", "whole", "mask", "swapped"]
    for one in records:
        expected = arrays[one.name].astype("f8")
        np.testing.assert_array_equal(one.load().astype("f8"), expected)
        assert one.statistics is not None
        assert one.statistics.norm == pytest.approx(np.linalg.norm(expected))


def test_a_dropped_step_and_one_that_an_exception_cuts_are_no_steps(tmp_path: Path) -> None:
    def record(value: float) -> None:
        sink.step()
        sink.open_call("", "numpy.of").record(Role.OUTPUT, "result", np.full(3, value, "f4"))

    def fail() -> None:
        with sink:
            record(0)
            sink.drop_step()
            record(1)
            record(2)
            raise KeyError

    sink = Sink(tmp_path / "ref", VERSIONS)
    with pytest.raises(KeyError):
        fail()
    rank = lockstep.open(tmp_path / "ref").ranks["rank0"]
    assert rank.steps == (0,)
    assert rank.manifest.ended_by == "the exception KeyError"
    assert rank.calls(0)[0].records[0].statistics.maximum == 1  # type: ignore[union-attr]


def test_what_could_not_be_seen_stands_in_the_headline(tmp_path: Path) -> None:
    for name in ("ref", "cand"):
        with Sink(tmp_path / name, VERSIONS) as sink:
            sink.step()
            sink.note_gap("functions that are compiled", "they hand nothing over")
            sink.loss(np.float32(1))
    found = lockstep.compare_recordings(tmp_path / "ref", tmp_path / "cand")
    assert headline(found).endswith("not recorded: functions that are compiled")


def test_a_taken_directory_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "ref")
    with pytest.raises(OutputExistsError):
        Sink(tmp_path / "ref", VERSIONS)


def test_no_torch_is_loaded() -> None:
    code = "import sys, lockstep.capture.sink; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
