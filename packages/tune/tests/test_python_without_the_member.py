"""A Python without the member whose code runs in a training: it is brought along, and the path stays as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_TRAINING = """
import importlib.util, sys
before = list(sys.path)
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
if "tune" in sys.argv:
    from lockstep.core.members import own_folders
    there = any("lockstep_tune" in folder for folder in own_folders())
else:
    there = importlib.util.find_spec("lockstep_tune") is not None
print(there, sys.path == before)
"""


@pytest.mark.cold
def test_a_python_without_the_member_is_profiled(
    python_without_members: Path, tmp_path: Path
) -> None:
    # given a training that such a Python runs, which has no member of its own
    script = tmp_path / "train.py"
    script.write_text(_TRAINING)
    python = python_without_members
    bare = subprocess.run([python, script], capture_output=True, text=True, check=True)
    assert bare.stdout == "False True\n"
    # when it is profiled
    command = [sys.executable, "-m", "lockstep", "profile", "-o", "profile", "--steps", "1:3", "--"]
    done = subprocess.run(
        [*command, python, script, "tune"], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    # then it was, the member's files are Lockstep's own there, and the path of the script is its own
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True True\n")
    assert (tmp_path / "profile" / "rank0" / "trace.json.gz").stat().st_size
