"""The recordings that are mutated: small trainings of two steps, each a reference beside a candidate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import lockstep

SAMPLES = {"sketch": 1.0, "sketch-faulty": 1.5, "tensors": 1.0, "tensors-faulty": 1.5}
"""What the output of one layer of the candidate is multiplied by."""


def record_samples(directory: Path) -> None:
    """Record every sample as `NAME/ref` and `NAME/cand`; those of sketches have two ranks."""
    for name, scale in SAMPLES.items():
        for side, factor in (("ref", 1.0), ("cand", scale)):
            path = directory / name / side
            save, _, _ = name.partition("-")
            _train(path, save, factor, rank=0)
            if save == "sketch":
                beside = directory / "beside"
                _train(beside, save, factor, rank=1)
                (beside / "rank1").rename(path / "rank1")
                (beside / "manifest.json").unlink()
                beside.rmdir()


def _train(path: Path, save: str, scale: float, *, rank: int) -> None:
    """Record a training into a new directory; one tensor of it is a formula over others, once whole ones are saved."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 40))
    model[1].register_forward_hook(lambda module, args, output: output * scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with _as_rank(rank), lockstep.record(path, model=model, steps="0:2", save=save):
        for _ in range(2):
            optimizer.zero_grad()
            tokens = torch.randint(0, 40, (4, 6))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()


@contextmanager
def _as_rank(rank: int) -> Iterator[None]:
    """Be one process of two, as a launcher would say."""
    before = dict(os.environ)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
