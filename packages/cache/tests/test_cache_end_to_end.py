"""A training with the cache is the training without it: recorded, compared, and its losses bit by bit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cache_daemon import Running

TRAIN = """
import os, random
import torch
from torch.utils.data import DataLoader
from cached_sets import Rows
from lockstep_cache import CachedDataset

torch.manual_seed(0)
random.seed(0)
dataset = Rows(length=24, width=16, scale=0.1)
if os.environ["WITH"] == "cache":
    dataset = CachedDataset(dataset, session="trained WORKERS")
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for epoch in range(3):
    for batch in DataLoader(dataset, 4, shuffle=True, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"].float() / 24)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
print(*losses, torch.rand(1).item().hex(), random.random().hex())
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_training_recorded_with_the_cache_and_one_without_agree_bit_by_bit(
    workers: int, running: Running, tmp_path: Path
) -> None:
    # given a training that shuffles and drops out, recorded without the cache and with it, which its first epoch fills
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("WORKERS", str(workers)))
    lockstep = running.programs / "lockstep"
    printed = {}
    for name in ("without", "with"):
        done = subprocess.run(
            [lockstep, "record", "-o", tmp_path / name, "--steps", "0:18:6", "--", running.programs / "python", script],
            capture_output=True, text=True, check=False, cwd=tmp_path,
            env={
                **running.environment, "PYTHONPATH": str(Path(__file__).parent),
                "WITH": "nothing" if name == "without" else "cache",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed[name] = done.stdout
    # then losses and random numbers behind them are the same bits, and the recordings agree
    assert printed["without"] == printed["with"]
    assert len(printed["with"].split()) == 20
    assert running.session(f"trained {workers}")["samples"] == 24
    command = [lockstep, "compare", tmp_path / "without", tmp_path / "with", "--json"]
    compared = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["verdict"] == "agree"
