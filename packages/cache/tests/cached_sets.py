"""Data sets that tests cache, each with something that a cache must mind."""

from __future__ import annotations

import random
import time
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


class Holding(Rows):
    """Holds something that its samples do not follow from, which nobody can know."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


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


class FromTheClock(Rows):
    """What nobody can watch."""

    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + time.perf_counter_ns() % 1_000_000


class OutOfOneFile(Rows):
    """Records of one file that stays open, each longer than what is read ahead of half of it."""

    record_bytes = 6000

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.file = open(path, "rb")  # noqa: SIM115, PTH123

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index * self.record_bytes)
        return self.file.read(self.record_bytes)


class PaddedToTheLongest(Rows):
    """Batches whose samples are as long as the longest of them."""

    def __getitem__(self, index: int) -> Any:
        return torch.ones(index + 1)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        longest = max(indices) + 1
        return [torch.nn.functional.pad(self[index], (0, longest - index - 1)) for index in indices]


class Normalised(Rows):
    """By the mean of more numbers than one thread sums."""

    def __getitem__(self, index: int) -> Any:
        made = torch.randn(150_000, generator=torch.Generator().manual_seed(index))
        return (made - made.mean()) / made.std()


class SeldomRandom(Rows):
    """Draws from a generator that is made for it, in some samples alone."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + (self.make() if index > 5 else 0)
