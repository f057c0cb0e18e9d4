"""Train an LSTM to read scikit-learn's handwritten digits, each image a sequence of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import faults
import options as shared

TRAINING_IMAGES = 1500


class RowEncoder(nn.Module):
    """Turns an image (batch, rows, columns) into one vector: the LSTM's state after all rows."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(columns, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, image: Tensor) -> Tensor:
        states, _ = self.lstm(torch.tanh(self.project(image)))
        return self.norm(states[:, -1])


class DigitClassifier(nn.Module):
    """Names the digit, one of ten."""

    def __init__(self, columns: int = 8, width: int = 64) -> None:
        super().__init__()
        self.encoder = RowEncoder(columns, width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.encoder(image))


def load_images() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set: images (8, 8) in [0, 1] and their digits."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
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
def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    """Return the share of ``dataset`` that ``model`` gets right, in [0, 1]."""
    model.eval()
    images, labels = dataset.tensors
    return (model(images).argmax(-1) == labels).float().mean().item()


def main() -> None:
    options = shared.parser(__doc__, batch_size=64).parse_args()
    shared.apply(options)
    training, test = load_images()
    model = DigitClassifier()
    batches = endless_batches(training, batch_size=options.batch_size, seed=options.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = plant(options.fault, model, batches, optimizer)

    for step, (images, labels) in enumerate(islice(batches, options.steps)):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)
    print(f"accuracy {accuracy(model, test):.3f}")


# ---------------------------------------------------------------------------------------------
# The faults: each in one place, everything else as it was


def plant(
    fault: str,
    model: DigitClassifier,
    batches: Iterator[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Plant ``fault`` in the model or the optimizer, or return batches that have it."""
    match fault:
        case "data":
            return with_first_image_moved(batches)
        case "init":
            model.encoder.lstm.weight_hh_l0.data.mul_(1.01)
        case "forward":
            model.encoder.norm.eps = 1e-4
        case "backward":
            model.encoder.lstm.__class__ = faults.ReversedGradientLSTM
        case "optimizer":
            optimizer.param_groups[0]["eps"] = 1e-4
        case "learning-rate":
            optimizer.param_groups[0]["lr"] *= 1.1
    return batches


def with_first_image_moved(
    batches: Iterator[tuple[Tensor, Tensor]],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Move the very first image one pixel to the right."""
    images, labels = next(batches)
    images[0] = images[0].roll(1, dims=-1)
    yield images, labels
    yield from batches


if __name__ == "__main__":
    main()
