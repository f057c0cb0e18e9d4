"""Train a small ResNet with random weights on scikit-learn's handwritten digits, enlarged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import ResNetConfig, ResNetForImageClassification

import faults
import options as shared

TRAINING_IMAGES = 1500
IMAGE_SIZE = 32


def build_model() -> ResNetForImageClassification:
    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=10,
    )
    return ResNetForImageClassification(config).train()


def load_images() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set: images (3, 32, 32) of mean 0, and their digits."""
    digits = load_digits()
    small = torch.from_numpy(digits.images).float()
    small = (small - small.mean()) / small.std()
    large = F.interpolate(small[:, None], size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear")
    images = large.repeat(1, 3, 1, 1)
    labels = torch.from_numpy(digits.target).long()
    training = TensorDataset(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])
    test = TensorDataset(images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:])
    return training, test


def endless_batches(
    dataset: TensorDataset, *, batch_size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled batches, epoch after epoch."""
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(dataset, batch_size, shuffle=True, drop_last=True, generator=order)
    while True:
        yield from loader


@torch.no_grad()
def accuracy(model: ResNetForImageClassification, dataset: TensorDataset) -> float:
    """Return the share of ``dataset`` that ``model`` gets right, in [0, 1]."""
    model.eval()
    images, labels = dataset.tensors
    return (model(pixel_values=images).logits.argmax(-1) == labels).float().mean().item()


def main() -> None:
    options = shared.parser(__doc__, batch_size=32).parse_args()
    shared.apply(options)
    training, test = load_images()
    model = build_model()
    batches = endless_batches(training, batch_size=options.batch_size, seed=options.seed)
    sgd = faults.DecaylessSGD if options.fault == "optimizer" else torch.optim.SGD
    optimizer = sgd(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    batches = plant(options.fault, model, batches, optimizer)

    for step, (images, labels) in enumerate(islice(batches, options.steps)):
        loss = F.cross_entropy(model(pixel_values=images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)
    print(f"accuracy {accuracy(model, test):.3f}")


# ---------------------------------------------------------------------------------------------
# The faults: each in one place, everything else as it was ("optimizer" is chosen in main)


def plant(
    fault: str,
    model: ResNetForImageClassification,
    batches: Iterator[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Plant ``fault`` in the model or the optimizer, or return batches that have it."""
    first, second = (stage.layers[0] for stage in model.resnet.encoder.stages)
    match fault:
        case "data":
            return with_first_image_brighter(batches)
        case "init":
            second.shortcut.convolution.weight.data.mul_(1.01)
        case "forward":
            first.layer[0].convolution.__class__ = faults.HalfInputConv2d
        case "backward":
            second.layer[1].convolution.__class__ = faults.HalfGradientConv2d
        case "learning-rate":
            optimizer.param_groups[0]["lr"] *= 1.1
    return batches


def with_first_image_brighter(
    batches: Iterator[tuple[Tensor, Tensor]],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Scale the very first image as if its brightest grey were 15, not 16."""
    images, labels = next(batches)
    images[0] *= 16 / 15
    yield images, labels
    yield from batches


if __name__ == "__main__":
    main()
