"""`lockstep check REC` of several ranks: what must differ between them, what must agree, and where they ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep_check.ranks.agreement import look_at_ranks
from lockstep_check.ranks.screen import as_values

SCRIPT = """
import sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def train(what):
    rank = dist.get_rank()
    torch.manual_seed(rank if "seed" in what else 0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    own = "own" in what or "forgotten" in what
    wrap = fully_shard if "sharded" in what else torch.nn.parallel.DistributedDataParallel
    model = net if own else wrap(net)
    rate = 0.02 if "rate" in what and rank else 0.01
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(5)), torch.arange(16) % 2)
    sampler = None if "unsampled" in what else DistributedSampler(data, shuffle=False)
    for batch, labels in DataLoader(data, 2, sampler=sampler):
        optimizer.zero_grad()
        with model.no_sync() if "unsynced" in what else nullcontext():
            torch.nn.functional.cross_entropy(model(batch), labels).backward()
        if "own" in what:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
        optimizer.step()

if __name__ == "__main__":
    import lockstep
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        with lockstep.record(case, steps="0:2"):
            train(case.split("+"))
    dist.barrier()
    dist.destroy_process_group()
"""
CASES = {
    "sound": None,
    "seed": None,
    "own": None,
    "sharded": None,
    "own+seed": "weights-before",
    "unsampled": "batches",
    "unsynced": "gradients",
    "forgotten": "gradients",
    "rate": "set-up",
}
"""What is planted, and what is named first."""


def start(programs: Path | None, place: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command beside the script; without `programs`, those that a user starts."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    own = [] if programs is None else [str(programs)]
    path = os.pathsep.join([*own, str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of each case."""
    place = tmp_path_factory.mktemp("ranks")
    (place / "train.py").write_text(SCRIPT)
    launcher = ("torchrun", "--nproc_per_node", "2", "--standalone", "train.py")
    with start(programs, place, *launcher, *CASES) as process:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    return place


def check(programs: Path | None, place: Path, *arguments: str) -> tuple[int, str, str]:
    with start(programs, place, "lockstep", "check", *arguments) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.parametrize(("case", "first"), CASES.items())
def test_ranks_differ_in_data_and_agree_in_what_they_learn(
    place: Path, case: str, first: str | None
) -> None:
    # given two ranks that train with one fault, or with none
    answers = look_at_ranks(place / case)
    # then it is named first, ahead of what follows from it
    facts: Any = as_values(answers)["facts"]
    wrong = [one["fact"] for one in facts if one["state"] == "wrong" and one["counts"]]
    assert (wrong[:1] or [None])[0] == first
    assert answers.differs == (first is not None)
    # and what cannot be known of parts of one model is said to be unknown
    states = {one["fact"]: one["state"] for one in facts}
    if case == "sharded":
        assert {states[name] for name in ("weights-before", "gradients", "weights")} == {"unknown"}
    elif first is None:
        assert {
            states[name]
            for name in ("batches", "weights-before", "buffers", "gradients", "weights")
        } == {"as it must be"}
    # and running statistics of a rank's own samples are told, and count for nothing
    assert states["running"] == "wrong" or case in ("sharded", "unsampled")


def test_the_answer_is_one_sentence_and_what_is_wrong(programs: Path, place: Path) -> None:
    code, out, _ = check(programs, place, "--json", "sound")
    assert (code, json.loads(out)["differs"]) == (0, False)
    code, out, _ = check(programs, place, "unsynced")
    assert code == 1
    assert out.startswith(
        "RANKS PART, first of all by gradients that updates take: 2 ranks in 2 recorded steps"
    )
    assert "at step 0 6 of 6 are others in rank1 than in rank0" in out
    assert "no_sync()" in out


def test_a_recording_of_one_rank_is_refused(programs: Path, place: Path) -> None:
    import torch

    import lockstep

    with lockstep.record(place / "one", steps="0:1"):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    code, _, err = check(programs, place, "one")
    assert code == 2
    assert "has one rank: check takes two recordings, or one of several ranks" in err


HANGING = """
import sys, threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, what = dist.get_rank(), sys.argv[1]
model = torch.nn.Linear(4, 4)
if what == "backward":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4 if what != "sound" else 300):
    optimizer.zero_grad()
    if what == "backward" and step == 2 and rank:
        threading.Event().wait()
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters() if what != "backward" else ():
        if what == "left out" and step == 3 and rank:
            break
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("what", "waits", "behind"),
    [
        (
            "left out",
            "rank 0 waits in all_reduce at hang.py:20",
            "rank 1 waits in barrier at hang.py:22",
        ),
        ("backward", "rank 0 waits in backward at hang.py:16", "rank 1 is at hang.py:15"),
    ],
)
def test_a_rank_that_waits_for_ever_is_named_with_the_one_that_never_comes(
    tmp_path: Path, what: str, waits: str, behind: str
) -> None:
    # given two ranks, of which one leaves out a collective
    (tmp_path / "hang.py").write_text(HANGING)
    launcher = ("torchrun", "--nproc_per_node", "2", "--standalone", "hang.py", what)
    # when they are watched
    code, out, err = check(None, tmp_path, "--hang", "2", "--", *launcher)
    # then the command is ended, and it is said who waits where, and where the other one is
    assert code == 1, err
    told = " ".join(out.split("\n  rank")[0].split())
    assert told.startswith("HANGS: ")
    assert waits in told
    assert behind in told


def test_ranks_that_meet_are_watched_to_their_end(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(HANGING)
    launcher = ("torchrun", "--nproc_per_node", "2", "--standalone", "hang.py", "sound")
    code, out, err = check(programs, tmp_path, "--hang", "30", "--", *launcher)
    assert (code, out) == (
        0,
        "NO RANK WAITED FOR EVER: the command of 2 ranks ended by itself\n",
    ), err


def test_a_command_without_ranks_is_refused(programs: Path, tmp_path: Path) -> None:
    code, _, err = check(programs, tmp_path, "--hang", "9", "--", "python", "-c", "import torch")
    assert code == 2
    assert "no process of the command was seen in a group of ranks" in err
