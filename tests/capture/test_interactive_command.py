"""What a recording keeps of the command of a process that was started by no file, as a notebook's kernel is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lockstep

CELL = """
import builtins, sys
if {in_ipython!r}:
    builtins.__IPYTHON__ = True  # as IPython does
sys.argv = {argv!r}
import torch
import lockstep
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with lockstep.record({path!r}, model=model, steps="0:1"):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
"""


@pytest.mark.cold
@pytest.mark.parametrize(
    ("argv", "in_ipython", "kept"),
    [
        (["/usr/lib/ipykernel_launcher.py", "-f", "kernel.json"], True, [""]),
        (["train.py", "--epochs", "3"], False, ["train.py", "--epochs", "3"]),
    ],
)
def test_the_program_that_runs_cells_is_no_command_of_the_training(
    tmp_path: Path, programs: Path, argv: list[str], in_ipython: bool, kept: list[str]
) -> None:
    # Given a process without a file of its own
    path = tmp_path / "recording"
    code = CELL.format(argv=argv, in_ipython=in_ipython, path=str(path))
    # When a cell records
    subprocess.run([str(programs / "python"), "-c", code], check=True, cwd=tmp_path)
    # Then what would start the kernel again is not kept as what trained
    assert lockstep.open(path).manifest.command == kept
