"""Recording from inside a script: the context manager and the plain object."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import recorded

import lockstep
from lockstep.core.errors import CaptureError, OutputExistsError, UsageError
from lockstep.core.site import CallKind


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def backward(model: torch.nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def train(model: torch.nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()


def test_a_with_block_records_its_first_steps(tmp_path: Path, model: torch.nn.Module) -> None:
    # When a training of three steps runs inside
    with lockstep.record(tmp_path / "ref", model=model, steps="0:2"):
        train(model, 3)

    # Then the first two are recorded, under plain module paths
    recording = lockstep.open(tmp_path / "ref")
    assert recording.missing == ()
    assert recording.ranks["rank0"].complete_steps == (0, 1)
    assert {call.site.module for call in recording.ranks["rank0"].calls(0)} >= {"", "0", "1", "2"}
    assert recording.manifest.state == "complete"


def test_steps_may_be_ended_by_hand(tmp_path: Path, model: torch.nn.Module) -> None:
    # Given a loop without an optimizer
    recording = lockstep.record(str(tmp_path / "ref"), model=model, steps="1:3")
    recording.start()

    # When its steps are ended by hand, and stop is called twice
    for _ in range(4):
        backward(model)
        recording.step()
    recording.stop()
    recording.stop()

    # Then the chosen ones are recorded
    assert lockstep.open(tmp_path / "ref").ranks["rank0"].complete_steps == (1, 2)


def test_an_exception_leaves_a_readable_recording(tmp_path: Path, model: torch.nn.Module) -> None:
    # When an exception leaves the block in the middle of step 1
    def fail() -> None:
        with lockstep.record(tmp_path / "ref", model=model):
            train(model, 1)
            backward(model)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    # Then it comes through as it is, and the open step is marked
    recording = lockstep.open(tmp_path / "ref")
    assert recording.ranks["rank0"].complete_steps == (0,)
    assert recording.ranks["rank0"].steps == (0, 1)
    assert len(recording.missing) == 1


@pytest.mark.parametrize("named", [False, True], ids=["model found", "model given"])
def test_a_block_that_fails_before_its_first_step_is_no_obstacle(
    tmp_path: Path, model: torch.nn.Module, named: bool
) -> None:
    # Given a block that an exception leaves before the model was called, as a wrong path to the data does
    def fail() -> None:
        with lockstep.record(tmp_path / "ref", model=model if named else None):
            raise FileNotFoundError("no such data")

    with pytest.raises(FileNotFoundError, match="no such data"):
        fail()

    # When the next one records to the same place, then it may
    with lockstep.record(tmp_path / "ref", model=model):
        train(model, 2)
    assert lockstep.open(tmp_path / "ref").ranks["rank0"].complete_steps == (0, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ref"]


def test_a_block_that_fails_in_its_first_step_keeps_what_was_seen(
    tmp_path: Path, model: torch.nn.Module
) -> None:
    # Given a block that an exception leaves in the first forward: what led to it is worth a look
    def fail() -> None:
        with lockstep.record(tmp_path / "ref", model=model):
            model(torch.ones(2, 7))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fail()

    # Then the call that failed is in the recording, and is not written over
    assert lockstep.open(tmp_path / "ref").ranks["rank0"].steps == (0,)
    with pytest.raises(OutputExistsError, match="exists already"):
        lockstep.record(tmp_path / "ref").start()


def test_a_taken_directory_is_left_alone(tmp_path: Path, model: torch.nn.Module) -> None:
    # Given a recording
    with lockstep.record(tmp_path / "ref", model=model, steps="0:1"):
        train(model, 1)
    before = sorted(tmp_path.rglob("*"))

    # When another is to be made there, then that is refused
    with pytest.raises(OutputExistsError, match="exists already"):
        lockstep.record(tmp_path / "ref").start()
    assert sorted(tmp_path.rglob("*")) == before
    # Unless it is forced
    with lockstep.record(tmp_path / "ref", model=model, steps="0:2", force=True):
        train(model, 2)
    assert lockstep.open(tmp_path / "ref").ranks["rank0"].complete_steps == (0, 1)


def test_one_recording_at_a_time(tmp_path: Path, model: torch.nn.Module) -> None:
    with lockstep.record(tmp_path / "ref", model=model):
        with pytest.raises(CaptureError, match="already running"):
            lockstep.record(tmp_path / "other").start()
        train(model, 2)

    assert not (tmp_path / "other").exists()
    assert lockstep.open(tmp_path / "ref").ranks["rank0"].complete_steps == (0, 1)


def test_a_script_that_records_itself_joins_the_recording_of_the_command(
    tmp_path: Path, model: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a script with a loop of its own that records itself, of which `lockstep record` records everything
    def training() -> None:
        with lockstep.record(tmp_path / "inner", model=model, steps="0:1") as recording:
            for _ in range(3):
                model.zero_grad()
                backward(model)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.sub_(parameter.grad, alpha=0.1)
                recording.step()

    # when it runs
    recording = recorded(tmp_path / "outer", training, steps="0:2")
    # then the command's recording holds the steps that were asked of it, as the script tells them,
    assert recording.ranks["rank0"].complete_steps == (0, 1)
    # and the script's own leaves nothing but a word
    assert not (tmp_path / "inner").exists()
    assert capsys.readouterr().err.splitlines() == [
        f"lockstep: nothing is written to {tmp_path / 'inner'}: `lockstep record` records this process already"
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 2}, "steps is the number 2; write steps='0:2' for the first 2 steps"),
        ({"steps": True}, "steps is True; write a text"),
        ({"steps": 1.5}, "steps is 1.5; write a text"),
        ({"steps": None}, "steps is None; write a text"),
        ({"steps": [0, 1]}, "write a text"),
        ({"steps": "1:0"}, "is not a step or a range"),
        ({"level": "modul"}, "level 'modul': choose one of module, api, aten"),
        ({"level": None}, "choose one of module, api, aten"),
        ({"save": "all"}, "choose one of stats, sketch, program, tensors"),
        ({"ranks": "x"}, "not a list of numbers"),
        ({"ranks": [0]}, "not a list of numbers"),
        ({"ranks": "-1"}, "a rank is 0 or more"),
        ({"model": "m"}, "model is 'm', of type str; give the torch.nn.Module itself"),
        ({"model": torch.nn.Linear}, "of type type; give the torch.nn.Module itself"),
        ({"only": [1]}, "only has 1, of type int; give patterns"),
        ({"skip": 5}, "skip has 5, of type int"),
        ({"max_bytes": -1}, "max_bytes is -1; give a whole number of at least 1"),
        ({"memory_bytes": -1}, "memory_bytes is -1; give a whole number of at least 1048576"),
        ({"memory_bytes": "1 XB"}, "memory_bytes is '1 XB'; write a size as 512MB"),
        ({"seed": -1}, "seed is -1; give a whole number from 0 to 4294967295"),
        ({"force": "yes"}, "force is 'yes', of type str; give True or False"),
        ({"calibrate": 1}, "calibrate is 1, of type int; give True or False"),
        ({"emulate": "abacus"}, "abacus"),
        ({"directory": 5}, "directory is 5, of type int; give a path"),
        ({"directory": ""}, "directory is ''; give a path"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        lockstep.record(**{"directory": tmp_path / "ref", **options})
    assert list(tmp_path.iterdir()) == []


def test_one_pattern_may_be_given_as_it_is(tmp_path: Path, model: torch.nn.Module) -> None:
    with lockstep.record(tmp_path / "ref", model=model, only="torch.nn.Linear"):
        train(model, 2)
    recording = lockstep.open(tmp_path / "ref")
    assert recording.manifest.options.only == ["torch.nn.Linear"]
    assert {call.site.op for call in recording.ranks["rank0"].calls(0, kind=CallKind.MODULE)} == {
        "torch.nn.Linear"
    }


@pytest.mark.parametrize("function", [lockstep.record, lockstep.open, lockstep.compare_recordings])
def test_every_argument_stands_in_the_signature(function: Callable[..., object]) -> None:
    # Help and type checkers show what can be given, each with its type
    parameters = inspect.signature(function).parameters.values()
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters)
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert {one.kind for one in parameters} <= kinds
    # And what is misspelt is refused
    with pytest.raises(TypeError, match="stepz"):
        function("ref", stepz=1)


def test_other_ranks_leave_nothing(tmp_path: Path, model: torch.nn.Module) -> None:
    with lockstep.record(tmp_path / "ref", model=model, ranks="3"):
        train(model, 1)

    assert list(lockstep.open(tmp_path / "ref").ranks) == []
