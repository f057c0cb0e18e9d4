"""Networks that learned scikit-learn's digits in seconds, exported, with samples to calibrate and to test on."""

import functools
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

_TRAINING = 1437


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2 = nn.Linear(144, 84), nn.Linear(84, 10)

    def forward(self, image):
        found = torch.relu(self.conv2(torch.relu(self.conv1(image))))
        found = torch.max_pool2d(found, 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(found)))


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        found = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(found)))


class SmallResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.blocks = nn.Sequential(Block(12), Block(12))
        self.head = nn.Linear(12, 10)

    def forward(self, image):
        return self.head(self.blocks(torch.relu(self.stem(image))).mean((2, 3)))


@dataclass(frozen=True)
class Exported:
    """Paths of a model and of its samples."""

    model: Path
    calibrate: Path
    test: Path


@functools.cache
def digits():
    """Images of [1, 8, 8] from 0 to 1, and their digits."""
    data = load_digits()
    return torch.tensor(data.images[:, None] / 16, dtype=torch.float32), torch.tensor(data.target)


def trained(network, epochs):
    """The network in eval mode, the same at each call."""
    torch.manual_seed(0)
    images, labels = digits()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(_TRAINING).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


@functools.cache
def exported(network=LeNet, epochs=8, **options):
    """A trained network as ONNX, once a process."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-digits-"))
    images, labels = digits()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            trained(network, epochs), (images[:8],), folder / "model.onnx", dynamo=True, external_data=False,
            input_names=["image"], dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False, **options,
        )  # fmt: skip
    np.savez(folder / "calibrate.npz", image=images[:128].numpy(), labels=labels[:128].numpy())
    np.savez(
        folder / "test.npz", image=images[_TRAINING:].numpy(), labels=labels[_TRAINING:].numpy()
    )
    return Exported(folder / "model.onnx", folder / "calibrate.npz", folder / "test.npz")
