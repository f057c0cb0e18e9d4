"""`lockstep show`: everything a recording holds, from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lockstep
from lockstep.cli.main import main


@pytest.fixture(scope="module")
def recording(lockstep_trained_recording: Path) -> Path:
    """Two steps of a tiny training, whole tensors."""
    return lockstep_trained_recording


def test_overview_tells_set_up_and_sites(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(recording)]) == 0
    printed = capsys.readouterr().out
    for word in (
        "step 0",
        "step 1",
        "torch.optim.AdamW: lr=0.01",
        "eps=1e-06",
        "torch.nn.functional.gelu",
        "0.weight",
    ):
        assert word in printed


def test_pattern_shows_records_with_arguments_and_stack(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(recording), "gelu", "--steps", "1"]) == 0
    printed = capsys.readouterr().out
    assert "step 1: 1 / torch.nn.functional.gelu #0, forward" in printed
    assert "approximate=tanh" in printed
    assert "train.py:" in printed
    for role in ("input", "output", "grad_output", "grad_input"):
        assert role in printed


def test_json_holds_the_same(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(recording), "0", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["manifest"]["options"]["save"] == "tensors"
    assert {call["module"] for call in value["calls"]} == {"0"}
    assert main(["show", str(recording), "--json"]) == 0
    assert any(
        site["op"] == "torch.nn.functional.gelu"
        for site in json.loads(capsys.readouterr().out)["sites"]
    )


def test_unknown_pattern_names_the_nearest(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(recording), "functional.gelo"]) == 2
    assert "torch.nn.functional.gelu" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--steps", "9"], ["--ranks", "rank7"]])
def test_unknown_step_and_rank_are_said(
    recording: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(recording), *option]) == 2
    assert "it has" in capsys.readouterr().err


def test_python_reaches_records_and_loads_tensors_lazily(recording: Path) -> None:
    # given a recording opened from Python
    opened = lockstep.open(recording)
    # when its records are walked
    records = list(opened.records())
    gelu = [
        record
        for record in records
        if record.site.op == "torch.nn.functional.gelu" and record.step == 0
    ]
    # then they are typed, in order, and their tensors load to the recorded numbers
    assert [record.role.value for record in gelu] == [
        "input",
        "output",
        "grad_output",
        "grad_input",
    ]
    values = gelu[0].load()
    assert values.shape == gelu[0].shape == (5, 3)
    assert gelu[0].statistics is not None
    assert np.isclose(np.linalg.norm(values), gelu[0].statistics.norm)
    expected = torch.nn.functional.gelu(torch.from_numpy(np.array(values)), approximate="tanh")
    assert np.array_equal(gelu[1].load(), expected.numpy())
    assert set(opened.ranks["rank0"].call_table["step"].to_list()) == {0, 1}
