"""`lockstep check --against REF -- COMMAND`: what a command is set up by, before it has computed anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

what = sys.argv[1:]
if "fails" in what:
    raise SystemExit(3)
ranks = "RANK" in os.environ
if ranks:
    dist.init_process_group("gloo")
torch.manual_seed(1 if "seed" in what else 0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
if "frozen" in what:
    model[0].requires_grad_(False)
trained = torch.nn.parallel.DistributedDataParallel(model) if ranks else model
rate = 0.2 if "rate" in what else 0.1
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=rate)
data = TensorDataset(torch.arange(64.0).reshape(16, 4) * (2 if "scaled" in what else 1))
sampler = DistributedSampler(data) if ranks else None
for epoch in range(2):
    for (batch,) in DataLoader(data, 2, sampler=sampler, num_workers=1 if "workers" in what else 0):
        try:
            loss = trained(batch).square().mean()
            loss.backward()
            print("backward", flush=True)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        except BaseException:
            print("caught", flush=True)
            raise
        finally:
            torch.save(model.state_dict(), "checkpoint.pt")
"""


def run(programs: Path, place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command beside the script."""
    (place / "train.py").write_text(SCRIPT)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True,
        check=False, timeout=240, env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of the script as it is."""
    place = tmp_path_factory.mktemp("beforehand")
    done = run(programs, place, "lockstep", "record", "-o", "ref", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    (place / "checkpoint.pt").unlink()
    return place


@pytest.mark.parametrize(
    ("what", "first"),
    [
        ("", None),
        ("seed", "seeds"),
        ("frozen", "frozen"),
        ("rate", "optimizer-options"),
        ("scaled", "data-preprocessing"),
        ("workers", "worker-seeds"),
    ],
)
def test_what_differs_is_named_before_anything_is_computed(
    programs: Path, place: Path, what: str, first: str | None
) -> None:
    # given a recording, and a command that is set up otherwise in one thing, or in none
    command = ("python", "train.py", *filter(None, [what]))
    # when it is checked against the recording
    done = run(programs, place, "lockstep", "check", "--json", "--against", "ref", "--", *command)
    # then that is named first, and nothing was trained, caught or saved
    answer = json.loads(done.stdout)
    assert named_first(answer) == first, done.stderr
    assert done.returncode == (0 if first is None else 1)
    assert "backward" not in done.stderr
    assert "caught" not in done.stderr
    assert not (place / "checkpoint.pt").exists()
    # and what is known behind the first update only is unknown
    unknown = {one["aspect"] for one in answer["aspects"] if one["state"] == "unknown"}
    assert {"clipping", "schedule", "accumulation", "length"} <= unknown


def named_first(answer: Any) -> str | None:
    """The first aspect that differs and counts."""
    differing = [one for one in answer["aspects"] if one["state"] == "differs" and one["counts"]]
    return differing[0]["aspect"] if differing else None


def test_the_recording_may_stand_behind_the_command_and_the_other_one_be_kept(
    programs: Path, place: Path
) -> None:
    # given the recording at the end of the line
    done = run(
        programs, place, "lockstep", "check", "--keep", "kept", "--",
        "python", "train.py", "--against", "ref",
    )  # fmt: skip
    # then it is found there, and what was recorded of the command says how it ended
    assert done.stdout.startswith("NOTHING DIFFERS"), done.stderr
    manifest = lockstep.open(place / "kept").ranks["rank0"].manifest
    assert manifest.ended_by == "lockstep check, before its first backward"
    assert [step.complete for step in manifest.steps] == [False]


def test_a_command_that_fails_before_is_said(programs: Path, place: Path) -> None:
    done = run(
        programs, place, "lockstep", "check", "--against", "ref", "--", "python", "train.py", "fails"
    )  # fmt: skip
    assert done.returncode == 2
    assert "the command ended with exit code 3" in done.stderr


def test_ranks_wait_for_each_other_and_end_alike(programs: Path, place: Path) -> None:
    # given a recording of the first of two ranks
    launcher = ("torchrun", "--nproc_per_node", "2", "--standalone", "train.py")
    run(programs, place, "lockstep", "record", "-o", "two", "--ranks", "0", "--", *launcher)
    (place / "checkpoint.pt").unlink()
    # when the same command is checked against it, and one of another rate
    same = run(programs, place, "lockstep", "check", "--against", "two", "--", *launcher)
    other = run(programs, place, "lockstep", "check", "--against", "two", "--", *launcher, "rate")
    # then both ranks were ended, nothing was saved, and what differs is named
    assert same.stdout.startswith("NOTHING DIFFERS"), same.stdout + same.stderr
    assert "options of the optimizer" in other.stdout.splitlines()[0]
    assert [same.returncode, other.returncode] == [0, 1]
    assert "\nbackward" not in same.stdout + other.stdout
    assert not (place / "checkpoint.pt").exists()
