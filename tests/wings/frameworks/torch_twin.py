"""The network of `tests/fixtures/tensorflow` in PyTorch, recorded with a mistake: torch_twin.py FOLDER MISTAKE ..."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import lockstep


class Net(torch.nn.Module):
    """A convolution, a normalisation, an activation and a head."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.flattens_as_it_lies = mistake == "flatten"
        self.c1 = torch.nn.Conv2d(2, 2, 3, padding="same")
        self.bn = torch.nn.BatchNorm2d(2, eps=1e-5 if mistake == "epsilon" else 1e-3, momentum=0.01)
        self.act = torch.nn.LeakyReLU(0.3 if mistake == "slope" else 0.1)
        self.head = torch.nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.bn(self.c1(x)))
        return self.head((x if self.flattens_as_it_lies else x.permute(0, 2, 3, 1)).flatten(1))


def main(folder: Path, mistake: str) -> None:
    """Record one step from the weights that the folder holds."""
    given = {name: torch.tensor(value) for name, value in np.load(folder / "weights.npz").items()}
    batch, labels = given.pop("batch"), given.pop("labels")
    if mistake == "hwio":
        given["c1.weight"] = given["c1.weight"].transpose(2, 3)
    torch.manual_seed(0)
    model = Net(mistake)
    model.load_state_dict(given, strict=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=1e-7)
    with lockstep.record(folder / mistake, model=model, steps="0", save="tensors"):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()


for one in sys.argv[2:]:
    main(Path(sys.argv[1]), one)
