"""Trainings that nobody has tuned, each slow for another reason: `python benchmarks/tune/trainings.py NAME`."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

_STEPS = 40


class _Packed(Dataset):
    """Images that are unpacked as they are read."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(0).integers(0, 64, (64, 3 * 160 * 160), dtype=np.uint8)
        self._packed = [zlib.compress(one.tobytes(), 1) for one in drawn]

    def __len__(self) -> int:
        return len(self._packed) * _STEPS

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        pixels = np.frombuffer(zlib.decompress(self._packed[at % 64]), np.uint8)
        image = pixels.reshape(3, 160, 160).astype(np.float64) / 255.0
        image = (image - image.mean((1, 2), keepdims=True)) / image.std((1, 2), keepdims=True)
        return torch.from_numpy(image[:, ::4, ::4].astype(np.float32)), at % 10


def images() -> None:
    """Images are unpacked in the process that trains."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(_Packed(), batch_size=64, shuffle=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def updates() -> None:
    """Two hundred small tensors are updated one by one."""
    torch.set_num_threads(1)
    layers = [one for _ in range(60) for one in (nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        x, y = torch.randn(16, 32), torch.randint(4, (16,))
        functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


class _Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.GELU(approximate="tanh"), nn.LayerNorm(64))
            for _ in range(60)
        )
        self.out = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.out(x)


def recomputed() -> None:
    """Activations are computed again in backward, although they would fit into memory."""
    torch.set_num_threads(1)
    model = _Recomputed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        x, y = torch.randn(32, 64), torch.randint(4, (32,))
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def threads() -> None:
    """Eight threads, set for another machine, share two cores."""
    torch.set_num_threads(8)
    layers = [one for _ in range(12) for one in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        x, y = torch.randn(256, 256), torch.randint(4, (256,))
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


TRAININGS = {one.__name__: one for one in (images, updates, recomputed, threads)}

if __name__ == "__main__":
    torch.manual_seed(0)
    TRAININGS[sys.argv[1]]()
