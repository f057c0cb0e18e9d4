"""Data sets that tests cache, each with something that a cache must mind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Rows(Dataset[Any]):
    """Samples that follow from their index and from what the data set is set to."""

    def __init__(self, length: int = 12, scale: float = 1.0, width: int = 1000) -> None:
        self.length, self.scale, self.width = length, scale, width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.made(index)

    def made(self, index: int) -> Any:
        return {"x": torch.full((self.width,), float(index)) * self.scale, "y": index}


class FromTorch(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + torch.rand(1)


class FromPython(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + random.random()


class FromNumpy(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + np.random.rand()


class FromItsOwn(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + self.generator.random()


class FromNowhere(Rows):
    """Draws from a generator that is made for each sample, which nobody can watch."""

    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + np.random.default_rng().random()


class Counting(Rows):
    """An attribute that changes with each sample."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.made(index)


class Shuffled(Rows):
    """A list that is shuffled in place at the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.order = list(range(self.length))

    def __getitem__(self, index: int) -> Any:
        return self.made(self.order[index])


class Opening(Rows):
    """Opens its file when the first sample is asked for."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.file = path, None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115, PTH123
        self.file.seek(index)
        return self.file.read(10)


class Stream(IterableDataset[Any]):
    def __init__(self, length: int = 700, noise: float = 0.0) -> None:
        self.length, self.noise = length, noise

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.length):
            yield torch.full((10,), float(index)) + (
                random.random() * self.noise if self.noise else 0
            )
