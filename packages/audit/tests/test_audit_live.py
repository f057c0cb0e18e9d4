"""`lockstep audit -- COMMAND`: the training is what it was, its steps are audited, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 240
STEPS = 6

SCRIPT = """
import sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Broken(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.gelu.default and "broken" in sys.argv:
            result.mul_(1.01)
        return result

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(6):
    if step == 4 and "crash" in sys.argv:
        raise ValueError("a mistake of the script")
    optimizer.zero_grad()
    with Broken():
        loss = model(torch.randn(5, 8)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
"""


class Place:
    """A folder with the script and an empty one for temporary files."""

    def __init__(self, path: Path, programs: Path) -> None:
        self.path, self._programs = path, programs
        self.temporary = path / "temporary"
        self.temporary.mkdir()
        (path / "train.py").write_text(SCRIPT)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of the programs to its end."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
        path = os.pathsep.join([str(self._programs), os.environ["PATH"]])
        return subprocess.run(
            command, cwd=self.path, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env={**kept, "PATH": path, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def audit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Audit the script."""
        return self.run("lockstep", "audit", *arguments)


@pytest.fixture
def place(tmp_path: Path, programs: Path) -> Place:
    """Where the training runs."""
    return Place(tmp_path, programs)


def test_the_training_is_that_of_the_bare_run_and_nothing_is_left_behind(place: Place) -> None:
    # Given what the bare training prints
    bare = place.run("python", "train.py")
    assert bare.returncode == 0, bare.stderr

    # When it is audited
    done = place.audit("--", "python", "train.py")

    # Then it prints the same to the last bit, and behind it the report on what was looked at and what was not
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(bare.stdout)
    report = done.stdout.removeprefix(bare.stdout)
    steps = re.match(r"SOUND in (\d+)(?: of (\d+))? steps?: of ", report)
    assert steps is not None, report
    # of as many as the training had
    assert int(steps[2] or steps[1]) == STEPS
    assert "none is beyond its floor" in report
    # and its recording is gone
    assert list(place.temporary.glob("lockstep-audit-*")) == []


def test_a_broken_kernel_is_named_while_the_training_runs(place: Place) -> None:
    # When a training with a broken kernel is audited, with its output apart from the JSON
    done = place.audit("--json", "--steps", "0:2", "--", "python", "train.py", "broken")

    # Then the operator is named, and no other
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert {(one["module"], one["op"]) for one in found["beyond"]} == {
        ("1", "torch.nn.functional.gelu")
    }
    assert found["exit_code"] == 0
    assert found["ranks"] == ["rank0"]
    # and every chosen step was either audited or counted as left out
    assert len(found["steps"]) + found["left_out"] == 2


def test_a_training_that_fails_leaves_the_report_of_what_was_audited(place: Place) -> None:
    done = place.audit("--", "python", "train.py", "crash")

    assert done.returncode == 2
    assert "ValueError: a mistake of the script" in done.stderr
    assert "SOUND in " in done.stdout
    assert "the training ended with exit code 1" in done.stdout


def test_each_nth_step_is_audited_or_counted(place: Place) -> None:
    done = place.audit("--json", "--every", "2", "--", "python", "train.py")

    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(found["steps"]) <= {0, 2, 4}
    assert len(found["steps"]) + found["left_out"] == 3
    assert (found["trained"], found["calls_left"]) == (STEPS, 0)


def test_a_budget_holds_from_the_start(place: Place) -> None:
    # When auditing may take a hundredth of the time of a training that is over before that starts it
    done = place.audit("--budget", "1%", "--", "python", "train.py")

    # Then nothing is looked at, and that is said: of one step, and of those that came while it waited
    assert done.returncode == 2
    report = done.stdout[done.stdout.index("nothing was judged") :]
    assert re.match(r"nothing was judged; the budget left no time for \d+ calls", report)


def test_what_is_no_training_is_said(place: Place) -> None:
    done = place.audit("--", "python", "-c", "print('done')")

    assert done.returncode == 2
    assert "nothing was judged" in done.stdout
    assert "nothing was recorded: no Python process of the command imported torch" in done.stdout
    missing = place.audit("--", "no-such-program")
    assert missing.returncode == 2
    assert "the command cannot be started" in missing.stderr
