"""The networks of `fixtures` in PyTorch, each with a mistake: torch_twin.py FOLDER keras|mindspore MISTAKE ..."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import lockstep


class OfKeras(torch.nn.Module):
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


class Half(torch.nn.Module):
    """Adds one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1.0


class OfMindSpore(torch.nn.Module):
    """The same with a pooling, a gelu and a module of its own."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.c1 = torch.nn.Conv2d(1, 3, 3)
        self.bn = torch.nn.BatchNorm2d(3)
        self.act = torch.nn.LeakyReLU(0.3 if mistake == "slope" else 0.1)
        self.pool = torch.nn.MaxPool2d(2, 2)
        self.flat = torch.nn.Flatten()
        self.plus = Half()
        self.head = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.flat(self.pool(self.act(self.bn(self.c1(x)))))
        return self.head(self.plus(torch.nn.functional.gelu(x)))


def main(folder: Path, side: str, mistake: str) -> None:
    """Record one step from the weights that the folder holds."""
    given = {name: torch.tensor(value) for name, value in np.load(folder / "weights.npz").items()}
    batch, labels = given.pop("batch"), given.pop("labels")
    if mistake == "hwio":
        given["c1.weight"] = given["c1.weight"].transpose(2, 3)
    torch.manual_seed(0)
    model = (OfKeras if side == "keras" else OfMindSpore)(mistake)
    model.load_state_dict(given, strict=False)
    # Keras adds its 1e-7 to the root before that is corrected for how few steps it has seen.
    epsilon = 1e-7 / (1 - 0.999) ** 0.5 if side == "keras" else 1e-8
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=epsilon)
    with lockstep.record(folder / mistake, model=model, steps="0", save="tensors"):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()


for one in sys.argv[3:]:
    main(Path(sys.argv[1]), sys.argv[2], one)
