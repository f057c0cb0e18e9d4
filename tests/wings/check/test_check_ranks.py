"""`lockstep check REC` of several ranks: what must differ between them, what must agree, and where they ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.wings.check.ranks.agreement import look_at_ranks
from lockstep.wings.check.ranks.screen import as_values

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


def start(programs: Path, place: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command beside the script."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
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
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    return place


def check(programs: Path, place: Path, *arguments: str) -> tuple[int, str, str]:
    with start(programs, place, "lockstep", "check", *arguments) as process:
        out, err = process.communicate(timeout=120)
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
