"""A device in name trains, is recorded and is compared through the code of any accelerator; see `fake/`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

FAKE = Path(__file__).parent / "fake"

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not all(map(shutil.which, ("c++", "ninja"))),
        reason="the fake device is compiled: a C++ compiler and ninja are needed",
    ),
]


@pytest.fixture(scope="module")
def environment(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the device is compiled to, once."""
    given = os.environ.get("LOCKSTEP_FAKE_DEVICE", str(tmp_path_factory.mktemp("fake")))
    built = {**os.environ, "LOCKSTEP_FAKE_DEVICE": given, "PYTHONPATH": str(FAKE)}
    run(programs, built, str(FAKE / "fake_device.py"), given)
    return built


def run(
    programs: Path, environment: dict[str, str], *words: str, codes: tuple[int, ...] = (0,)
) -> str:
    done = subprocess.run(
        [str(programs / "python"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def record(programs: Path, environment: dict[str, str], target: Path, *words: str) -> Path:
    weight = ["--save", "sketch"] if "--autocast" in words else []
    command = ["-m", "lockstep", "record", *weight, "-o", str(target), "--"]
    run(programs, environment, *command, str(programs / "python"), str(FAKE / "train.py"), *words)
    return target


def compared(
    programs: Path, environment: dict[str, str], reference: Path, candidate: Path
) -> dict[str, object]:
    words = ["-m", "lockstep", "compare", str(reference), str(candidate), "--json"]
    return json.loads(run(programs, environment, *words, codes=(0, 1)))


def test_numbers_are_taken_by_torchs_operators_there(
    programs: Path, environment: dict[str, str]
) -> None:
    script = (
        "import fake_device, torch; fake_device.register()\n"
        "from lockstep.devices.on_device.choice import pending, why_copied\n"
        "from lockstep.devices.tensor_numbers import measured\n"
        "for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool):\n"
        "    assert why_copied(torch.device('fake:0'), dtype) == '', dtype\n"
        "here = torch.randn(100, 300)\n"
        "found = pending(here.to('fake'), with_sketch=True)\n"
        "assert found.numbers()[0] == measured(here, with_sketch=True)[0]\n"
    )
    run(programs, environment, "-c", script)


def test_a_device_trains_records_and_compares(
    programs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    # given the same training on the CPU, twice on the device, and with a fault there
    cpu = record(programs, environment, tmp_path / "cpu", "cpu")
    fake = record(programs, environment, tmp_path / "fake", "fake")
    again = record(programs, environment, tmp_path / "again", "fake")
    wrong = record(programs, environment, tmp_path / "wrong", "fake", "1.003")
    # then the device agrees with the CPU and with itself
    assert compared(programs, environment, cpu, fake)["verdict"] == "agree"
    assert compared(programs, environment, fake, again)["verdict"] == "agree"
    # and the fault is named at its line
    found = compared(programs, environment, cpu, wrong)
    assert found["verdict"] == "diverged"
    lines = (FAKE / "train.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "* self.factor" in text)
    assert str(found["origin"]["source"]).endswith(f"train.py:{line}")  # type: ignore[index]


def test_a_device_that_autocasts_by_other_rules_agrees(
    programs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    # given a device whose autocast normalises in float32, as a GPU's does
    cpu = record(programs, environment, tmp_path / "cpu", "cpu", "--autocast")
    fake = record(programs, environment, tmp_path / "fake", "fake", "--autocast")
    # then that is no fault
    assert compared(programs, environment, cpu, fake)["verdict"] == "agree"
