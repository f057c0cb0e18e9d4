"""torch's vector functions are called on one thread before a training's first numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import lockstep
from lockstep.capture.process import first_numbers
from lockstep.capture.recorder import Recorder
from lockstep.core.manifest import Options


class Seen(list[str]):
    """What happened, in order; stands in for the function that prepares, which a process calls once."""

    def __call__(self) -> None:
        if "prepared" not in self:
            self.append("prepared")

    def cache_info(self) -> Seen:
        return self

    @property
    def currsize(self) -> int:
        return self.count("prepared")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setattr(first_numbers, "prepare_vector_math", found)
    return found


class Drawn(nn.Module):
    """A layer that draws its values as soon as it has its parameter."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 3))
        seen.append("drawn")


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "recording", Options(), wait_for_optimizer=True)
    recorder.arm()
    yield recorder
    recorder.finish()


def test_a_recorded_command_is_prepared_before_its_first_parameter_has_values(
    armed: Recorder, seen: Seen
) -> None:
    # given an armed recorder, when modules without parameters are made, as libraries do when they are imported
    nn.GELU()
    assert (
        seen == []
    )  # then nothing has been called: the script may still choose kernels by its environment
    # when a layer is made, then all is prepared before its values are drawn
    Drawn(seen)
    assert seen == ["prepared", "drawn"]


def test_a_recording_in_code_is_prepared_before_its_first_step(seen: Seen, tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    with lockstep.record(tmp_path / "recording"):
        seen.append("begun")
        weight.tanh().sum().backward()
    assert seen == ["prepared", "begun"]


def test_no_hook_stays_behind(seen: Seen, tmp_path: Path) -> None:
    before = dict(torch_module._global_parameter_registration_hooks)
    recorder = Recorder(tmp_path / "recording", Options(), wait_for_optimizer=True)
    recorder.arm()
    recorder.finish()
    assert dict(torch_module._global_parameter_registration_hooks) == before
    Drawn(seen)
    assert seen == ["drawn"]


SCRIPT = """
import os, torch
os.environ["MKL_CBWR"] = "COMPATIBLE"  # after torch was loaded, and before anything was computed
torch.manual_seed(0)
model = torch.nn.Linear(200, 200)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.randn(64, 200)).exp().sum().backward()
    optimizer.step()
print(float(model.weight.detach().double().square().sum()).hex())
"""


@pytest.mark.cold
@pytest.mark.exhaustive
def test_kernels_that_a_script_asks_for_behind_its_imports_are_taken_as_without_recording(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    record = ["-m", "lockstep", "record", "-o", "recording", "--", sys.executable]
    bare, recorded = (
        subprocess.run(
            [sys.executable, *prefix, "train.py"],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for prefix in ([], record)
    )
    assert bare.split()[0] in recorded.split()
