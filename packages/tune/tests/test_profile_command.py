"""`lockstep profile` of real trainings: the line that is slow on purpose is named, and no bit of a training changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

_TRAINING = """
import sys, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 1)
    def forward(self, x):
        h = self.up(x).relu()
        if "slow" in sys.argv:
            for row in range(2000):
                h = h + 0
        return self.down(h)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = net(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item().hex(), sum(p.double().sum().item() for p in net.parameters()).hex())
"""
_SLOW_LINE = 1 + _TRAINING.splitlines().index("                h = h + 0")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("profiled") / "train.py"
    file.write_text(_TRAINING)
    return file


def _run(
    programs: Path, script: Path, *arguments: str, expected: int = 0
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [programs / "lockstep", "profile", *arguments], cwd=script.parent, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert ended.returncode == expected, ended.stderr
    return ended


def test_the_slow_line_is_named_first_and_no_bit_of_the_training_changes(
    programs: Path, script: Path, tmp_path: Path
) -> None:
    command = [str(programs / "python"), script.name, "slow"]
    bare = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=300)
    # when
    ended = _run(programs, script, "-o", str(tmp_path / "prof"), "--steps", "1:4", "--", *command)
    # then
    first = ended.stdout.removeprefix(bare.stdout).splitlines()[0]
    assert f"train.py:{_SLOW_LINE}" in first
    assert first.startswith("FRAMEWORK: many small calls")
    # and the training's own output, the loss and the parameters, is the same bit by bit
    assert ended.stdout.startswith(bare.stdout)
    assert bare.stdout
    # and the page and the trace are there
    page = (tmp_path / "prof" / "profile.html").read_text()
    assert "many small calls" in page
    assert f"train.py:{_SLOW_LINE}" in page
    assert (tmp_path / "prof" / "rank0" / "trace.json.gz").stat().st_size
    # and what was written is read again
    again = _run(programs, script, str(tmp_path / "prof" / "rank0"))
    assert again.stdout.splitlines()[0] == first


_TRAINER = """
import torch
from transformers import Trainer, TrainingArguments
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.out = torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
    def forward(self, x, labels):
        scores = self.out(self.drop(x))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}
rows = [{"x": torch.randn(8), "labels": at % 2} for at in range(24)]
quiet = dict(report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True)
args = TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, use_cpu=True, **quiet)
net = Net()
Trainer(model=net, args=args, train_dataset=rows).train()
"""
_COMPILED = (
    _TRAINING.partition("print(")[0]
    .replace("net(", "compiled(")
    .replace("optimizer = ", "compiled = torch.compile(net)\noptimizer = ")
)
_PRINTS = "print(*(p.double().sum().item().hex() for p in net.parameters()))\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("training", [_TRAINER, _COMPILED], ids=["trainer", "compiled"])
def test_no_bit_changes_where_others_run_the_loop_or_compile_the_model(
    programs: Path, tmp_path: Path, training: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(training + _PRINTS)
    command = [str(programs / "python"), file.name]
    bare = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    # when
    ended = _run(programs, file, "--steps", "1:4", "--", *command)
    # then
    assert bare.stdout.splitlines()[-1] in ended.stdout
    assert bare.returncode == 0, bare.stderr


def test_modules_and_operators_are_listed_with_times_shapes_and_flops(
    programs: Path, script: Path
) -> None:
    python = str(programs / "python")
    ended = _run(programs, script, "--json", "--steps", "1:4", "--", python, script.name)
    found: dict[str, Any] = json.loads(ended.stdout)
    modules = {one["module"]: one for one in found["modules"]}
    assert {"up", "down", "(optimizer)"} <= set(modules)
    assert set(modules["up"]["phases_us"]) == {"forward", "backward"}
    # 4 rows of 16 by 32, a product and a sum each
    (product,) = [
        one for one in found["operators"] if (one["name"], one["module"]) == ("aten::addmm", "up")
    ]
    assert (product["flops"], product["calls"]) == (2 * 4 * 16 * 32, 1)
    assert product["shapes"].split() == ["[32]", "[4,16]", "[16,32]"]
    assert len(found["steps_us"]) == 3  # of 1:4, all
    # and the machine's peak was measured
    assert found["peak_flops"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--steps", "0::2"), "steps in a row"),
        (("--steps", "3:8", "--max-steps", "5"), "ends the training before"),
        (("--steps", "7:9"), "the training ended after 5 steps, before step 7 began"),
    ],
)
def test_what_cannot_be_profiled_is_said_in_a_sentence(
    programs: Path, script: Path, arguments: tuple[str, ...], words: str
) -> None:
    command = [str(programs / "python"), script.name]
    ended = _run(programs, script, *arguments, "--", *command, expected=2)
    assert words in ended.stderr


def test_a_command_that_is_not_there_is_said(programs: Path, script: Path) -> None:
    ended = _run(programs, script, "--", "no-such-program", expected=2)
    assert "command not found" in ended.stderr


def test_a_killed_training_shows_no_profile_of_the_one_before(
    programs: Path, script: Path, tmp_path: Path
) -> None:
    # Given a profile, and a training that is killed before the profiled steps
    into, python = tmp_path / "profile", str(programs / "python")
    _run(programs, script, "-o", str(into), "--", python, script.name)
    killed = script.with_name("killed.py")
    killed.write_text(
        _TRAINING.split("for _ in")[0]
        + "import os, subprocess\nsubprocess.run(['kill', '-KILL', str(os.getpid())])\n"
    )
    # When it is profiled into the same folder
    ended = _run(
        programs, script, "--force", "-o", str(into), "--", python, killed.name, expected=2
    )
    # Then nothing is shown, and nothing is said that nobody knows
    assert ended.stdout == ""
    assert "nothing was profiled: the command ended with exit code 137" in ended.stderr
    assert "ended before it could say whether it trained" in ended.stderr


@pytest.mark.parametrize(("at", "timed"), [(4, 2), (2, 0)])
def test_a_step_that_a_signal_cuts_is_not_timed(
    programs: Path, script: Path, at: int, timed: int
) -> None:
    # Given a training that is ended in the middle of a step
    ended = script.with_name(f"ended{at}.py")
    ended.write_text(
        _TRAINING.replace("for _ in range(5):", "import os\nfor step in range(9):").replace(
            "    loss = net", f"    if step == {at}: os.kill(os.getpid(), 15)\n    loss = net"
        )
    )
    # When it is profiled
    python = str(programs / "python")
    found = _run(
        programs, script, "--steps", "2:6", "--", python, ended.name, expected=143 if timed else 2
    )
    # Then the whole steps are told and the cut one is not, or it is said that there is none
    if timed:
        assert f"{timed} steps timed" in found.stdout
        assert f"the training ended in step {at}, before all 4 steps" in " ".join(
            found.stdout.split()
        )
    else:
        assert found.stdout == ""
        assert "the training ended in step 2, before a step from 2 on was over" in found.stderr
