"""The PyTorch side of a pair: torch_side.py MODEL FOLDER. Leaves its first weights and its batch in the folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])


class Convolutional(torch.nn.Module):
    """Two convolutions, a normalisation and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.bn = torch.nn.BatchNorm2d(4, eps=1e-3, momentum=0.01)
        self.act = torch.nn.LeakyReLU(0.1)
        self.c2 = torch.nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(128, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.c2(self.act(self.bn(self.c1(x)))).flatten(1))


class Recurrent(torch.nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 5, batch_first=True)
        self.head = torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


torch.manual_seed(0)
model = {"convolutional": Convolutional, "recurrent": Recurrent}[MODEL]()
optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=1e-7)
shape = (4, 3, 8, 8) if MODEL == "convolutional" else (4, 6, 3)
x = np.random.default_rng(0).normal(size=shape).astype("f4")
y = np.arange(4) % 3
state = {name: one.numpy().copy() for name, one in model.state_dict().items()}
np.savez(FOLDER / f"{MODEL}.npz", **state)
np.savez(FOLDER / f"{MODEL}-batch.npz", x=x, y=y)
torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
optimizer.step()
