"""Two networks to deploy: LeNet for digits, and a ResNet, each with the inputs that it is exported with."""

import torch
from torch import nn


class LeNet(nn.Module):
    """LeNet-5 for images of 32 x 32 in grey."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def lenet():
    """LeNet, a batch, and what its file is to say about it."""
    torch.manual_seed(0)
    facts = {
        "class_names": [str(digit) for digit in range(10)],
        "preprocessing": {"scale": "0 to 1"},
    }
    return LeNet(), torch.rand(4, 1, 32, 32), facts


def resnet50():
    """ResNet-50 for images of 224 x 224."""
    return _resnet((2, 3, 224, 224))


def resnet():
    """A ResNet of the same build with two blocks, for 32 x 32."""
    small = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "num_labels": 10}
    return _resnet((4, 3, 32, 32), **small)


def _resnet(shape, **settings):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig(**settings)), torch.rand(shape)
