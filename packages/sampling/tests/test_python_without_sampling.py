"""A Python without the member: what it runs in a training is brought along."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_TRAINING = """
import sys
before = list(sys.path)
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    if "note" in sys.argv:
        import lockstep
        lockstep.weights(model, step=step)
    optimizer.step()
print(sys.path == before)
"""


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb on the training in a folder."""
    (folder / "train.py").write_text(_TRAINING)
    command = [sys.executable, "-m", "lockstep", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.cold
@pytest.mark.parametrize("python_without_members", ["core"], indirect=True)
def test_weights_are_noted_in_a_python_without_the_member(
    python_without_members: Path, tmp_path: Path
) -> None:
    done = run(tmp_path, "record", "-o", "run", "--", python_without_members, "train.py", "note")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert len(list((tmp_path / "run" / "weights").iterdir())) == 2


@pytest.mark.cold
@pytest.mark.exhaustive
def test_modules_are_tested_in_a_python_without_the_member(
    python_without_members: Path, tmp_path: Path
) -> None:
    done = run(tmp_path, "invariance", "--json", "--", python_without_members, "train.py")
    assert done.returncode == 0, done.stderr
    assert [one["model"] for one in json.loads(done.stdout)["models"]] == ["Linear"]
