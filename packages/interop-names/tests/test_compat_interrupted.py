"""Dumps of the faces that do not come to their end: a full disk, or a training that is killed meanwhile."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.core.errors import LockstepError
from lockstep_interop_names.faces.probe_debugger import Debugger
from lockstep_interop_names.msprobe import pytorch as msprobe

TRAINING = """
import os, signal, sys
import torch
from lockstep_interop_names.msprobe.pytorch import PrecisionDebugger
from lockstep_interop_names.faces import probe_files
saved, count = probe_files.save_tensor, [0]

def save(*given):
    count[0] += 1
    if count[0] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    saved(*given)

probe_files.save_tensor = save
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="mix")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
for _ in range(2):
    debugger.start(model)
    model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
"""


@contextmanager
def disk_of(size_bytes: int) -> Iterator[None]:
    """No file may be longer: as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def train(folder: Path | None) -> list[float]:
    """Two steps, dumped where a folder is given."""
    msprobe.seed_all(3)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = (
        None
        if folder is None
        else msprobe.PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    )
    losses = []
    for _ in range(2):
        if debugger is not None:
            debugger.start(model)
        loss = model(torch.ones(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if debugger is not None:
            debugger.stop()
        optimizer.step()
        if debugger is not None:
            debugger.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("size_bytes", [100, 4000, 12000])
def test_a_full_disk_is_said_and_the_training_is_as_without(
    size_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(msprobe, "DEBUGGER", Debugger())
    with disk_of(size_bytes):
        losses = train(tmp_path / "dump")
    # Then why there is no dump is said, nothing that looks like one is there, and the losses are the same
    said = capsys.readouterr().err
    assert "File too large" in said
    assert not list(tmp_path.rglob("dump.json"))
    assert losses == train(None)


def test_a_training_that_is_killed_while_it_dumps_leaves_whole_steps_alone(
    tmp_path: Path, programs: Path
) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    for number, whole in ((1, 0), (9, 0), (30, 1)):
        folder = tmp_path / f"killed{number}"
        ended = subprocess.run(
            [str(programs / "python"), str(script), str(folder), str(number)], capture_output=True
        )
        assert ended.returncode == -signal.SIGKILL
        dumps = list(folder.glob("step*/*/dump.json"))
        assert len(dumps) == whole
        for dump in dumps:
            assert all(
                record.content.loader is not None for record in lockstep.open(dump.parent).records()
            )
        with suppress(LockstepError):  # what there is else is no dump, or a recording of its own
            lockstep.open(folder)
