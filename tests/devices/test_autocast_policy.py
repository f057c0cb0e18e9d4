"""What autocast computes in on a device is asked of torch, without that device, and nothing is changed by asking."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.devices.autocast_policy import policy_of

TRAIN = Path(__file__).parent / "fake" / "train.py"


def test_a_gpu_normalises_in_float32_and_a_cpu_does_not() -> None:
    gpu, cpu = policy_of("cuda", torch.bfloat16), policy_of("cpu", torch.bfloat16)
    assert gpu["layer_norm"] == gpu["softmax"] == "float32"
    assert "layer_norm" not in cpu
    assert gpu["linear"] == cpu["linear"] == "bfloat16"
    assert policy_of("cuda", torch.float16)["linear"] == "float16"


def test_autocast_is_as_it_was() -> None:
    before = torch.get_autocast_dtype("cuda")
    with torch.autocast("cpu", torch.bfloat16):
        policy_of("cpu", torch.float16)
        policy_of("cuda", torch.bfloat16)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cuda") is before


@pytest.fixture(scope="module")
def recordings(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trainings under autocast: plain, with a GPU's rules, with a fault beside them, with a layer cast by hand."""
    folder = tmp_path_factory.mktemp("policies")
    ways = {
        "plain": [],
        "rules": ["--gpu-rules"],
        "fault": ["1.05", "--gpu-rules"],
        "by-hand": ["--by-hand"],
    }
    for name, words in ways.items():
        command = [str(programs / "python"), "-m", "lockstep", "record", "--save", "sketch"]
        command += ["-o", str(folder / name), "--", str(programs / "python"), str(TRAIN), "cpu"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*command, "--autocast", *words], check=True, capture_output=True, env=environment
        )
    return {name: folder / name for name in ways}


def compared(programs: Path, reference: Path, candidate: Path) -> tuple[dict[str, Any], str]:
    command = [
        str(programs / "python"),
        "-m",
        "lockstep",
        "compare",
        str(reference),
        str(candidate),
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout), " ".join(shown.stdout.split())


def test_other_rules_of_autocast_are_a_line_and_no_fault(
    programs: Path, recordings: dict[str, Path]
) -> None:
    # given two sound trainings whose devices have other rules for layer_norm
    found, shown = compared(programs, recordings["plain"], recordings["rules"])
    # then they agree, and the rules are told
    assert found["verdict"] == "agree", shown
    assert "set-up: autocast's rules for - / layer_norm float32" in shown
    # in either order
    assert compared(programs, recordings["rules"], recordings["plain"])[0]["verdict"] == "agree"


def test_a_fault_behind_other_rules_is_named(programs: Path, recordings: dict[str, Path]) -> None:
    found, shown = compared(programs, recordings["plain"], recordings["fault"])
    assert found["verdict"] == "diverged", shown
    lines = TRAIN.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "* self.factor" in text)
    assert found["origin"]["source"].endswith(f"train.py:{line}"), shown


def test_a_layer_that_the_script_casts_is_still_a_difference(
    programs: Path, recordings: dict[str, Path]
) -> None:
    # given one script that gives layer_norm float32, and the same rules on both sides
    found, shown = compared(programs, recordings["plain"], recordings["by-hand"])
    # then it is named, as no device's rule explains it
    assert found["verdict"] == "diverged", shown
    assert "float32 in the candidate" in shown
