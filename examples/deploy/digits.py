"""LeNet and a small ResNet that learn scikit-learn's digits in seconds: what `walk.py` exports.

``python digits.py DIR`` trains both, and writes their weights and the samples to ``DIR``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

TRAINING = 1437
CALIBRATION = 256
EPOCHS = 12


class LeNet(nn.Module):
    """Two convolutions and two linear layers; takes images of [batch, 1, 8, 8] from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(144, 84)
        self.fc2 = nn.Linear(84, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Ten scores for each image."""
        found = F.relu(self.conv2(F.relu(self.conv1(image))))
        return self.fc2(F.relu(self.fc1(F.max_pool2d(found, 2).flatten(1))))


class Block(nn.Module):
    """Two convolutions, and what came in added to what they give."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As many channels as came in."""
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class SmallResNet(nn.Module):
    """A stem, two blocks and a linear layer."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.head = nn.Linear(channels, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Ten scores for each image."""
        return self.head(self.blocks(F.relu(self.stem(image))).mean((2, 3)))


def lenet() -> nn.Module:
    """The factory of `lenet.pth`."""
    return LeNet()


def resnet() -> nn.Module:
    """The factory of `resnet.pth`."""
    return SmallResNet()


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Train a model with Adam on the first images."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(TRAINING).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()


def main(folder: Path) -> None:
    """Write `lenet.pth`, `resnet.pth`, and samples to calibrate and to test on."""
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    for name, factory in (("lenet", lenet), ("resnet", resnet)):
        torch.manual_seed(0)
        model = factory()
        train(model, images, labels)
        torch.save({"state_dict": model.state_dict()}, folder / f"{name}.pth")
    for name, chosen in (("calibrate", slice(CALIBRATION)), ("test", slice(TRAINING, None))):
        np.savez(
            folder / f"{name}.npz", image=images[chosen].numpy(), labels=labels[chosen].numpy()
        )
    np.savez(folder / "two.npz", image=images[TRAINING : TRAINING + 2].numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
