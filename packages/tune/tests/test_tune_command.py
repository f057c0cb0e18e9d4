"""`lockstep tune` of a real training: what cheats is rejected, what is faster stays and is applied by `run-tuned`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

_TRAINING = """
import os, sys, torch
torch.manual_seed(0)
if "SURE" in os.environ and os.environ["SURE"] != "1":
    sys.exit(9)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
for step in range(8):
    if "QUICK" not in os.environ:
        torch.ones(300, 300) @ torch.ones(300, 30000)
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item().hex())
"""
_KNOBS = """
knobs: {}
own:
  - {name: cheats, environment: {QUICK: "1"}, python: doubled.py}
  - {name: fails, environment: {SURE: "0"}}
  - {name: honest, environment: {QUICK: "1"}, edit: leave out the product}
"""


def _run(
    programs: Path, folder: Path, *words: str, expected: int = 0
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [str(programs / "lockstep"), *words, "--", str(programs / "python"), "train.py"], cwd=folder,
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert ended.returncode == expected, ended.stderr
    return ended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(_TRAINING)
    (tmp_path / "knobs.yaml").write_text(_KNOBS)
    doubled = "import torch\nplain = torch.Tensor.mean\ntorch.Tensor.mean = lambda self: plain(self) * 2\n"
    (tmp_path / "doubled.py").write_text(doubled)
    return tmp_path


def test_what_is_faster_with_equal_numbers_is_kept_and_applied(
    programs: Path, folder: Path
) -> None:
    words = ("tune", "--knobs", "knobs.yaml", "--steps", "2:6", "--repeat", "3", "--json")
    ended = _run(programs, folder, *words)
    found = json.loads(ended.stdout)
    # then the fast one with other numbers is rejected, as is the one that fails, each with its reason
    verdicts = {one["name"]: (one["verdict"], one["words"]) for one in found["tried"]}
    assert verdicts["cheats"][0] == "other numbers"
    assert verdicts["cheats"][1].startswith("DIVERGED at step 0")
    assert verdicts["fails"] == ("fails", "the command ended with exit code 9")
    assert verdicts["honest"][0] == "kept"
    assert found["own"] == ["honest"]
    assert found["speed"]["low"] > 1.0
    assert found["edits"] == ["honest: leave out the product"]
    # and the search is known from its log: no training runs but the first one, which tells what there is
    again = _run(programs, folder, *words)
    assert json.loads(again.stdout)["tried"] == found["tried"]
    assert again.stderr.count("known from the log") == 4
    # and the page and the settings are there, which `run-tuned` takes
    assert "leave out the product" in (folder / "tuned" / "tune.html").read_text()
    plain = subprocess.run(
        [str(programs / "python"), "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    tuned = _run(programs, folder, "run-tuned", "tuned/tuned.yaml")
    assert tuned.stdout == plain.stdout


def test_a_training_that_does_not_repeat_itself_is_not_tuned(programs: Path, folder: Path) -> None:
    (folder / "train.py").write_text(_TRAINING.replace("manual_seed(0)", "seed()"))
    ended = _run(programs, folder, "tune", "--knobs", "knobs.yaml", "--steps", "1:3", expected=2)
    assert "two runs of the command as it is do not agree" in ended.stderr
    assert "--seed 0" in ended.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--steps", "3:99"), "the training ended in step 8, before step 99 began"),
        (("--repeat", "1"), "--repeat 1 tells no interval"),
        (("--budget", "soon"), "'soon' is not a time; write 90s, 30m or 2h"),
        (("-o", "."), "holds no log of a search"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_a_sentence(
    programs: Path, folder: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in _run(programs, folder, "tune", *words, expected=2).stderr
