"""Workers, ranks and trainings at once: every batch is bitwise that without the cache."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cache_daemon import Running

TRAINING = """
import random
import numpy as np
import torch
import torch.distributed as dist
from cached_sets import Rows
from torch.utils.data import DataLoader, DistributedSampler
from lockstep_cache import CachedDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
plain, cached = Rows(length=48, scale=1.7), CachedDataset(Rows(length=48, scale=1.7), session="SESSION")


def loader(dataset, workers):
    generator = torch.Generator().manual_seed(5)
    sampler = DistributedSampler(plain, shuffle=True, seed=1)
    return DataLoader(dataset, 4, sampler=sampler, num_workers=workers, generator=generator), sampler


with_it, its_sampler = loader(cached, WORKERS)
without, sampler = loader(plain, 0)
count = 0
for epoch in range(2):
    its_sampler.set_epoch(epoch)
    sampler.set_epoch(epoch)
    for left, right in zip(with_it, without, strict=True):
        assert torch.equal(left["x"], right["x"]) and torch.equal(left["y"], right["y"])
        count += len(left["y"])
assert count == 48, count
print("equal")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("trainings", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_four_workers_of_two_ranks_get_every_batch_as_without_the_cache(
    trainings: int, running: Running, tmp_path: Path
) -> None:
    # given trainings of two ranks that begin at once with an empty session
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("WORKERS", "4").replace("SESSION", f"ranks{trainings}"))
    environment = {
        **running.environment,
        "PYTHONPATH": str(Path(__file__).parent),
        "OMP_NUM_THREADS": "1",
    }
    command = [running.programs / "torchrun", "--standalone", "--nproc_per_node", "2", script]
    started = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(trainings)
    ]
    # then each batch of two epochs is bitwise that without the cache
    for training in started:
        printed, said = training.communicate(timeout=300)
        assert training.returncode == 0, said
        assert printed.split() == ["equal", "equal"]
        assert "samples are loaded" not in said
    # and each sample lies there once
    session = running.session(f"ranks{trainings}")
    assert (session["samples"], session["processes"], session["closed"]) == (48, 0, "")
