"""The cache and its peers, each as a map-style data set of the same samples: a float32 picture and its label."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lockstep_cache import CachedDataset


class Files(Dataset[Any]):
    """A file of NumPy a sample, in the page cache: what a plain DataLoader reads."""

    def __init__(self, folder: Path, shape: tuple[int, ...], length: int) -> None:
        self.folder, self.shape, self.length = folder, shape, length
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(length):
            picture = np.random.default_rng(index).standard_normal(shape, dtype=np.float32)
            np.save(folder / f"{index}.npy", picture)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.load(self.folder / f"{index}.npy")), index


class Transformed(Dataset[Any]):
    """The same with something to be computed: a picture that is made larger, cut out and normalised."""

    def __init__(self, below: Files, scale: float) -> None:
        self.below, self.scale = below, scale

    def __len__(self) -> int:
        return len(self.below)

    def __getitem__(self, index: int) -> Any:
        picture, label = self.below[index]
        side = picture.shape[-1]
        larger = torch.nn.functional.interpolate(
            picture[None], scale_factor=self.scale, mode="bicubic", antialias=True
        )
        start = (larger.shape[-1] - side) // 2
        cut = larger[0, :, start : start + side, start : start + side]
        return ((cut - cut.mean()) / cut.std()).contiguous(), label


class Lmdb(Dataset[Any]):
    """LMDB, the bytes alone; each sample is a copy that may be written to, as a training expects."""

    def __init__(self, below: Files, folder: Path) -> None:
        import lmdb

        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.shape, self.length = str(folder), below.shape, len(below)
        self.transaction: Any = None
        with lmdb.open(self.path, map_size=1 << 32) as store, store.begin(write=True) as writing:
            for index in range(len(below)):
                picture, label = below[index]
                writing.put(
                    index.to_bytes(4, "big"),
                    label.to_bytes(8, "little") + picture.numpy().tobytes(),
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "transaction": None}

    def __len__(self) -> int:
        return self.length

    def bytes_of(self, index: int) -> Any:
        if self.transaction is None:
            import lmdb

            store = lmdb.open(self.path, map_size=1 << 32, readonly=True, lock=False)
            self.transaction = store.begin(buffers=True)
        return self.transaction.get(index.to_bytes(4, "big"))

    def __getitem__(self, index: int) -> Any:
        found = bytearray(self.bytes_of(index))
        label = int.from_bytes(found[:8], "little")
        return torch.frombuffer(found, dtype=torch.float32, offset=8).view(self.shape), label


class LmdbView(Lmdb):
    """LMDB without the copy: writing to such a sample kills the process."""

    def __getitem__(self, index: int) -> Any:
        found = self.bytes_of(index)
        label = int.from_bytes(found[:8], "little")
        return torch.frombuffer(found, dtype=torch.float32, offset=8).view(self.shape), label


class DiskCache(Dataset[Any]):
    """diskcache, with pickled samples."""

    def __init__(self, below: Files, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.length, self.store = str(folder), len(below), None
        with self._opened() as store:
            for index in range(len(below)):
                picture, label = below[index]
                store[index] = pickle.dumps((picture.numpy(), label), protocol=5)

    def _opened(self) -> Any:
        import diskcache

        return diskcache.Cache(self.path, size_limit=1 << 33)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "store": None}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.store is None:
            self.store = self._opened()
        picture, label = pickle.loads(self.store[index])
        return torch.from_numpy(picture), label


class Ray(Dataset[Any]):
    """Ray's object store; its arrays cannot be written to."""

    def __init__(self, below: Files) -> None:
        import ray

        if not ray.is_initialized():
            ray.init(
                num_cpus=1,
                object_store_memory=1 << 30,
                include_dashboard=False,
                log_to_driver=False,
            )
        self.length = len(below)
        self.places = [ray.put((below[index][0].numpy(), index)) for index in range(len(below))]

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices: list[int]) -> Any:
        import ray

        found = ray.get([self.places[index] for index in indices])
        return [(torch.from_numpy(picture), label) for picture, label in found]


def contenders(below: Files, folder: Path, address: str) -> dict[str, Callable[[], Dataset[Any]]]:
    """By name what makes each; a peer that is not installed is left out when it is made."""
    warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
    return {
        "lockstep": lambda: CachedDataset(below, address=address),
        "LMDB": lambda: Lmdb(below, folder / "lmdb"),
        "LMDB, read-only view": lambda: LmdbView(below, folder / "lmdb-view"),
        "diskcache": lambda: DiskCache(below, folder / "diskcache"),
        "Ray": lambda: Ray(below),
        "plain files": lambda: below,
    }
