"""What a recording notes of how batches are drawn, and that nothing is drawn for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Training, check
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lockstep.core.manifest import RankManifest


def training(*, draws: int = 0, **options: Any) -> Training:
    """Batches of a loader whose sampler is told of the epoch, and so many draws in front of the first step."""
    random.seed(0)
    np.random.seed(0)
    np.random.random(draws)
    data = TensorDataset(torch.arange(16.0).reshape(8, 2))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=5)
    loader = DataLoader(data, batch_size=2, sampler=sampler, **options)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches: list[Any] = []

    def step(number: int) -> Tensor:
        sampler.set_epoch(number // 2)
        if not batches:
            batches.extend(loader)
        optimizer.zero_grad()
        loss: Tensor = model(batches.pop(0)[0]).square().mean() * random.random()
        loss = loss * float(np.random.random())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, step, optimizers=[optimizer])


def manifest_of(path: Path, **options: Any) -> RankManifest:
    """Of a training that was also run bare, with the same losses and parameters to the bit."""
    return check(lambda: training(**options), path).ranks["rank0"].manifest


def test_loaders_samplers_and_their_epochs_are_noted(tmp_path: Path) -> None:
    # when a training with a loader is recorded
    manifest = manifest_of(tmp_path / "ref", generator=torch.Generator().manual_seed(3))
    # then the loader stands at its first step, with what it draws by
    first = manifest.loaders[0]
    assert (first.index, first.name) == (0, "torch.utils.data.dataloader.DataLoader")
    wanted = {
        "dataset": "TensorDataset", "batch_size": 2, "num_workers": 0, "generator": "seed 3",
        "sampler": "DistributedSampler", "sampler.seed": 5, "sampler.shuffle": True, "sampler.rank": 1,
        "collate_fn": "default_collate", "worker_init_fn": "none",
    }  # fmt: skip
    assert wanted.items() <= first.settings.items()
    # and again only where the epoch is another one
    epochs = [one.settings["sampler.epoch"] for one in manifest.loaders]
    assert len(set(epochs)) == len(epochs)
    assert {one.index for one in manifest.loaders} == {0}


def test_states_of_generators_are_digests_that_tell_draws_apart(tmp_path: Path) -> None:
    manifests = [
        manifest_of(tmp_path / name, draws=draws).random_states
        for name, draws in (("one", 0), ("two", 0), ("other", 1))
    ]
    assert manifests[0] == manifests[1]
    assert {name for name in manifests[0] if manifests[0][name] != manifests[2][name]} == {"numpy"}


def test_iterating_is_as_it_was_when_recording_is_over(tmp_path: Path) -> None:
    before = vars(DataLoader)["__iter__"]
    manifest_of(tmp_path / "ref")
    assert vars(DataLoader)["__iter__"] is before
