"""`lockstep follow`: the training is compared step by step, and ends where it leaves its reference."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import GrowingComparison, SteppedTo, compare_recordings
from lockstep.store.reader import Recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.wings.follow import follow_command
from lockstep.wings.follow.chart import step_chart

TIMEOUT_S = 240
SCRIPT = """
import sys, torch
torch.manual_seed(0)
width = 9 if "wide" in sys.argv else 16
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.GELU(), torch.nn.Linear(width, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(1)
steps = 100000 if "late" in sys.argv else 12
for step in range(steps):
    x = torch.randn(32, 8)
    if "late" in sys.argv and step == 5:
        model[1] = torch.nn.Tanh() if "far" in sys.argv else torch.nn.GELU(approximate="tanh")
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(model[0].weight.sum().item().hex())
"""


class Run(Protocol):
    """Runs Lockstep in a folder of its own."""

    folder: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Run:
    """Runs Lockstep in a folder with a script and its reference `ref`."""
    folder = tmp_path_factory.mktemp("follow")
    (folder / "train.py").write_text(SCRIPT)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    path = os.pathsep.join([str(programs), os.environ["PATH"]])

    def run_in_folder(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["lockstep", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    run = cast(Run, run_in_folder)
    run.folder = folder
    assert run("record", "-o", "ref", "--steps", "0:10", "--", "python", "train.py").returncode == 0
    return run


def test_the_same_training_agrees_to_its_end(run: Run) -> None:
    # Given a reference of ten steps
    # When the same training follows it
    ended = run("follow", "ref", "-o", "same", "--", "python", "train.py")
    # Then all are compared, and it goes on to its own end
    assert ended.returncode == 0, ended.stderr
    assert "AGREE: steps 0-9 of 12 trained" in ended.stdout
    assert "   9  " in ended.stdout


def test_a_fault_that_begins_late_ends_the_training_where_compare_points(run: Run) -> None:
    # Given a training that would take for hours, with another activation from step 5 on
    # When it follows the reference
    ended = run("follow", "ref", "-o", "late", "--json", "--", "python", "train.py", "late")
    # Then it ends, the operator of step 5 is named as it comes, and compare says the same
    assert ended.returncode == 1
    assert "step 5: 1 / torch.nn.functional.gelu leaves the reference (train.py:13)" in ended.stderr
    origin = json.loads(ended.stdout)["origins"][0]
    assert (origin["step"], origin["op"]) == (5, "torch.nn.functional.gelu")
    compared = json.loads(run("compare", "ref", "late", "--json").stdout)["origins"][0]
    assert {key: compared[key] for key in ("step", "module", "op", "phase")} == {
        key: origin[key] for key in ("step", "module", "op", "phase")
    }
    # And of one step more that operator's tensors alone are kept whole, to be run again
    assert "late-origin: lockstep replay late-origin --whole" in ended.stderr
    kept = lockstep.open(run.folder / "late-origin").ranks["rank0"]
    assert kept.steps[0] > 5
    assert kept.has_tensors
    assert {call.site.module for call in kept.calls(kept.steps[0])} - {""} == {"1"}
    assert "0 calls beyond" in run("replay", "late-origin", "--whole").stdout


def test_a_reference_of_another_model_is_no_agreement(run: Run) -> None:
    # Given a reference of another model
    # When a training follows it
    ended = run("follow", "ref", "-o", "wide", "--go-on", "--", "python", "train.py", "wide")
    # Then the training goes on to its end, and nobody says that they agree
    assert ended.returncode in (1, 2)
    assert "AGREE" not in ended.stdout
    assert "0x" in ended.stdout


def test_what_is_compared_step_by_step_is_what_compare_finds(tmp_path: Path) -> None:
    # Given two trainings of which one has another epsilon in its normalisation
    def train(path: Path, epsilon: float) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16, eps=epsilon), torch.nn.Linear(16, 1)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with lockstep.record(path, model=model, steps="0:3"):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()

    train(tmp_path / "ref", 1e-5)
    train(tmp_path / "cand", 1e-3)
    # When they are compared as a whole, and step by step
    whole = compare_recordings(tmp_path / "ref", tmp_path / "cand")
    growing = GrowingComparison(lockstep.open(tmp_path / "ref"))
    steps = list(growing.add(lockstep.open(tmp_path / "cand")))
    # Then the origin is the same from the first step on, and nothing is compared twice
    assert [step.number for step in steps] == [0, 1, 2]
    assert [str(step.origins[0].finding.pair.present.site) for step in steps] == [
        str(whole.origins[0].finding.pair.present.site)
    ] * 3
    assert list(growing.add(lockstep.open(tmp_path / "cand"))) == []


def test_a_stop_that_the_whole_comparison_does_not_confirm_is_no_agreement(
    tmp_path: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given a reference, and a comparison by the step that takes noise for a fault
    class Suspicious(GrowingComparison):
        def add(self, candidate: Recording) -> Iterator[SteppedTo]:
            for step in super().add(candidate):
                yield replace(
                    step, origins=cast(Any, (SimpleNamespace(module="", op="x", source="y"),))
                )

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["--", str(programs / "python"), "train.py"]
    assert main(["record", "-o", "ref", "--steps", "0:10", *command]) == 0
    monkeypatch.setattr(follow_command, "GrowingComparison", Suspicious)
    # When the same training follows it, and is asked to end
    code = main(["follow", "ref", *command])
    # Then what was not trained is not said to agree
    assert code == 2
    assert "explains as noise" in capsys.readouterr().out


def test_the_chart_has_a_line_a_step_and_is_thinned() -> None:
    # Given steps that are equal, and many of them
    steps = [SteppedTo(number, 0.0, None, ()) for number in range(100)]
    # When they are drawn
    lines = step_chart(steps).splitlines()
    # Then there are at most forty lines beside the head, which says so
    assert "each 3-th" in lines[0]
    assert len(lines) == 35
    assert all("#" not in line for line in lines)


def test_losses_that_agree_are_no_agreement_of_trainings(run: Run) -> None:
    # Given a reference that holds all its losses, of which the last two behind its recorded steps
    # When the same training is followed by its losses alone
    ended = run("follow", "ref", "-o", "bare", "--loss-only", "--", "python", "train.py")
    # Then they are equal, nothing else is said to be, nothing is left, and its numbers are those of before
    assert ended.returncode == 0, ended.stderr
    assert "losses agree: steps 0-11, 12 losses, at most 0 floors apart" in ended.stdout
    assert "nothing but the losses was compared" in ended.stdout
    assert "AGREE" not in ended.stdout
    assert run("show", "bare").returncode == 2
    again = run("follow", "ref", "-o", "again", "--", "python", "train.py")
    assert ended.stdout.split()[0] == again.stdout.split()[0]


def test_a_loss_that_parts_has_the_next_step_recorded_whole_and_compared(run: Run) -> None:
    # Given a training that would take for hours, with another activation from step 5 on
    # When its losses are followed
    command = ("--", "python", "train.py", "late", "far")
    ended = run("follow", "ref", "-o", "far", "--loss-only", "--json", *command)
    # Then it ends, the step behind is compared with that of the reference, and the operator named
    assert ended.returncode == 1, ended.stderr
    values = json.loads(ended.stdout)
    assert (values["parted_at"], values["recorded_step"]) == (5, 6)
    assert [pair[0] for pair in values["ranks"]["rank0"]["losses"]] == [0, 1, 2, 3, 4, 5]
    origin = values["comparison"]["origins"][0]
    assert (origin["step"], origin["module"]) == (6, "1")
    # And the step opens, and each of its operators can be run again
    assert "step 6" in run("show", "far", "--steps", "6").stdout
    assert run("replay", "far", "--whole").returncode == 0


def test_a_place_that_is_taken_is_refused_and_what_lies_there_is_left(
    lockstep_faulty_pair: FaultyPair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given a recording with a fault, where the candidate is to be kept
    taken = shutil.copytree(lockstep_faulty_pair.candidate, tmp_path / "followed")
    before = {one: one.stat().st_mtime_ns for one in taken.rglob("*")}
    # when a training is to be followed there
    words = ["follow", str(lockstep_faulty_pair.reference), "-o", str(taken), "--", "true"]
    assert main(words) == 2
    # then that is all that is said: nothing of the recording that lies there, in which nothing changes
    said = capsys.readouterr()
    assert "exists already" in said.err
    assert said.err.count("\n") == 1
    assert {one: one.stat().st_mtime_ns for one in taken.rglob("*")} == before
