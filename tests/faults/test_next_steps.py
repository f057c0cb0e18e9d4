"""The command under a verdict, of ten drawn faults: pasted as it is printed, and it does what it says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

TRAINING = Path(__file__).parents[2] / "benchmarks" / "faults" / "one_training.py"
COUNT, SEED = 10, 54
"""How many faults are drawn, and by which seed (docs/faults.md)."""

FEW = 1
"""How many of them `make test` takes; `--every-way` takes all ten."""

PROOFS = {
    "record it with whole tensors, and run it again, alone": "\n    recorded  ",
    "run it again, alone, on its recorded inputs": "\n    recorded  ",
    "record the step with whole tensors, and compare it again": "DIVERGED at step ",
    "show what was recorded there": "rank0 step ",
}
"""What a command of these words prints if it did what they say: results as recorded beside re-runs, or a call."""


class Shell:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if "LOCKSTEP" not in name},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self._environment, capture_output=True,
            text=True, check=False, timeout=240,
        )  # fmt: skip

    def record(self, name: str, arguments: str) -> None:
        done = self.type(f"lockstep record -o {name} -- python {TRAINING} drawn.json {arguments}")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def shell(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with the drawn faults, and a recording of the sound training."""
    shell = Shell(tmp_path_factory.mktemp("drawn"), programs)
    done = shell.type(f"python {TRAINING} drawn.json --draw {COUNT} --seed {SEED}")
    assert done.returncode == 0, done.stderr
    shell.record("sound", "")
    return shell


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number < FEW else pytest.mark.exhaustive)
        for number in range(COUNT)
    ],
)
def test_the_printed_command_does_what_it_says(shell: Shell, number: int) -> None:
    # Given the recording of a training with a fault
    faults = list(json.loads((shell.folder / "drawn.json").read_text()))
    assert len(faults) == COUNT
    shell.record("faulty", faults[number])
    compared = shell.type("lockstep compare sound faulty")
    assert compared.returncode == 1, compared.stdout

    # When its last line is pasted
    words, line = compared.stdout.rstrip("\n").splitlines()[-2:]
    words = words.removeprefix("What next: ")
    done = shell.type(line)
    for made in ("faulty", "sound-whole", "faulty-whole"):
        subprocess.run(["rm", "-rf", made], cwd=shell.folder, check=True)

    # Then it ends as an answer does, with what its words promise
    assert done.returncode in (0, 1), f"{faults[number]}: {line}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    assert PROOFS[words] in done.stdout, f"{faults[number]}: {words}\n{done.stdout}"
