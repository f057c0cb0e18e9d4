"""Commands that `check`, `doctor` and `diagnose` print are run as they are printed, or completed where a log cannot."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import lockstep_check

TEXTS = Path(lockstep_check.__file__).parent
TRAIN = """
import sys
import torch

torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.linspace(-1, 1, 16).reshape(2, 2, 4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
TRAINING = "-- python train.py 0"


def printed() -> list[str]:
    """Every command of Lockstep in the texts of these verbs, each once."""
    found = set[str]()
    for file in TEXTS.rglob("*.yaml"):
        text = file.read_text()
        found.update(re.findall(r"`(lockstep [^`]+)`", text))
        found.update(re.findall(r"cure: (lockstep .+)", text))
        found.update(re.findall(r"(lockstep record -o [^\s\"`]+)", text))
    return sorted(found)


COMPLETIONS = {
    r"^lockstep check --repeat$": "lockstep check --repeat 2 COMMAND",
    r"^lockstep check --script$": "lockstep check --script train.py",
    r"^lockstep compare$": "lockstep compare ref cand",
    r"^lockstep diagnose$": "lockstep diagnose train.log",
    r"^lockstep show$": "lockstep show ref",
    r"^lockstep watch$": "lockstep watch COMMAND",
    r"^lockstep migrate$": "lockstep migrate train.py",
    r"^lockstep replay$": "lockstep replay ref --whole",
    r"^lockstep replay --write-test DIR$": "lockstep replay ref --only '*linear' --steps 0 --write-test DIR",
    r"^lockstep record$": "lockstep record -o NEW COMMAND",
    r"^lockstep record(.*) -o \S+$": r"lockstep record\1 -o NEW COMMAND",
    r"^lockstep record (.*)--seed$": r"lockstep record \1--seed 0",
    r"^lockstep record (.*)--max-bytes$": r"lockstep record \1--max-bytes 10MB",
    r"^lockstep record (--(?!help)[^.]*?)( \.\.\.)?$": r"lockstep record \1 -o NEW COMMAND",
}
"""What a text leaves to the reader: of which recordings, and which command."""


def completed(command: str) -> str:
    for pattern, complete in COMPLETIONS.items():
        if " -o NEW" not in command:
            command = re.sub(pattern, complete, command)
    return (
        command.replace(" -- COMMAND", " COMMAND").replace("COMMAND", TRAINING).replace("N ", "1 ")
    )


@pytest.fixture(scope="module")
def folder(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training, its log, and two recordings that begin at different weights."""
    folder = tmp_path_factory.mktemp("printed")
    (folder / "train.py").write_text(TRAIN)
    (folder / "train.log").write_text("loss nan at step 3\n")
    for name, seed in (("ref", 0), ("same", 0), ("cand", 1)):
        line = f"lockstep record --save tensors -o {name} -- python train.py {seed}"
        done = typed(line, folder, programs)
        assert done.returncode == 0, done.stderr
    return folder


def typed(line: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if "LOCKSTEP" not in name}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", printed())
def test_a_command_of_a_text_runs(command: str, folder: Path, programs: Path) -> None:
    # Given what a text says, with what only its reader knows
    line = completed(command)
    subprocess.run(["rm", "-rf", "NEW", "DIR"], cwd=folder, check=True)
    # When it is typed
    done = typed(line, folder, programs)
    # Then it answers: nothing of it is unknown or lacks an argument
    assert done.returncode in (0, 1), f"{line}\n{done.stderr}"
    assert (folder / "NEW").exists() is (" -o NEW" in line)


@pytest.mark.parametrize(
    ("candidate", "answers"),
    [("cand", ("DIVERGED",)), ("same", ("REPEATABLE", "NOT REPEATABLE"))],
    ids=["differs", "the same"],
)
def test_what_check_says_comes_next_is_run_as_printed(
    candidate: str, answers: tuple[str, ...], folder: Path, programs: Path
) -> None:
    # Given two set-ups, and that of one command
    checked = typed(f"lockstep check ref {candidate}", folder, programs)
    words, line = checked.stdout.rstrip("\n").splitlines()[-2:]
    assert words.startswith("What next: see whether ")
    # When the last line is pasted
    done = typed(line, folder, programs)
    # Then it gives the answer that was promised
    answer = next(one for one in done.stdout.splitlines() if one.startswith(answers))
    assert answer, done.stderr


def test_what_diagnose_says_names_commands_that_are_run_here(folder: Path, programs: Path) -> None:
    # Given a log with a message whose cure is a command
    done = typed("lockstep diagnose train.log", folder, programs)
    # Then each that it prints is among those that the test above runs
    said = re.findall(r"`(lockstep [^`]+)`", " ".join(done.stdout.split()))
    assert said
    assert set(said) <= set(printed())
