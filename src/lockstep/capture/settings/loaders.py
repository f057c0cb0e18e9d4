"""How batches are drawn: the data loaders that a training iterates, their samplers, and the state of the generators.

Nothing of the script's is called and no number is drawn: attributes are read where they lie.
"""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, Subset, TensorDataset

from lockstep.capture.patching.patches import Patch
from lockstep.capture.silence import Silence
from lockstep.core.manifest import LoaderSetup, RankManifest
from lockstep.devices.tensor_numbers import digest_of

_OF_LOADER = ("batch_size", "num_workers", "drop_last")
_OF_SAMPLER = (
    "shuffle",
    "seed",
    "epoch",
    "num_replicas",
    "rank",
    "drop_last",
    "replacement",
    "batch_size",
)
_FUNCTIONS = ("collate_fn", "worker_init_fn")
_WRAPPED = ("batch_sampler", "sampler")
_MOST_LOADERS = 16
"""Loaders that are noted: one a step would be another training's habit, and no set-up."""


class Loaders:
    """The data loaders that are iterated while a training is recorded; `fail` is told what went wrong in here."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._met: list[_Met] = []
        self._noted: dict[int, dict[str, Any]] = {}
        self.patch = Patch(DataLoader, "__iter__", self._noting)

    def note(self, manifest: RankManifest, step: int) -> None:
        """Note loaders that were iterated so far and are set up otherwise than when they were noted last."""
        for index, one in enumerate(self._met):
            settings = one.settings_now()
            if settings != self._noted.get(index):
                self._noted[index] = settings
                manifest.loaders.append(LoaderSetup(index, step, one.name, settings))

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def noting(loader: Any) -> Any:
            with Silence(self._fail):
                is_new = not any(one.is_of(loader) for one in self._met)
                if is_new and len(self._met) < _MOST_LOADERS:
                    self._met.append(_Met(loader))
            return original(loader)

        return noting


class _Met:
    """A loader that is iterated. A script may keep nothing but its iterator: then it is told as it was at that time."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = weakref.ref(loader)
        self._settings = dict(_settings(loader))
        self.name = f"{type(loader).__module__}.{type(loader).__qualname__}"

    def is_of(self, loader: object) -> bool:
        return self._loader() is loader

    def settings_now(self) -> dict[str, Any]:
        loader = self._loader()
        if loader is not None:
            self._settings = dict(_settings(loader))
        return self._settings


def _settings(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    """What a loader, its sampler and the sampler of its batches are set up by, as plain values."""
    own = vars(loader)
    yield "dataset", _class_of(own.get("dataset"))
    yield from _samples_of(own.get("dataset"))
    yield from _plain(own, _OF_LOADER, "")
    for name in _FUNCTIONS:
        yield name, _function_name(own.get(name))
    yield "generator", _seed_of(own.get("generator"))
    for name in _WRAPPED:
        sampler = own.get(name)
        yield name, _class_of(sampler)
        inside = getattr(sampler, "__dict__", {})
        yield from _plain(inside, _OF_SAMPLER, f"{name}.")
        if "generator" in inside:
            yield f"{name}.generator", _seed_of(inside["generator"])


def _samples_of(dataset: object) -> Iterator[tuple[str, Any]]:
    """How many samples there are, of data sets whose length is no code of the script's."""
    tensors = vars(dataset)["tensors"] if type(dataset) is TensorDataset else ()
    indices = vars(dataset)["indices"] if type(dataset) is Subset else None
    if tensors:
        yield "samples", int(tensors[0].shape[0])
    elif type(dataset) in (list, tuple) or type(indices) in (list, tuple, range):
        yield "samples", len(dataset if indices is None else indices)  # type: ignore[arg-type]


def _plain(
    values: dict[str, Any], names: tuple[str, ...], prefix: str
) -> Iterator[tuple[str, Any]]:
    for name in names:
        if type(values.get(name)) in (bool, int, float):
            yield f"{prefix}{name}", values[name]


def _class_of(value: object) -> str:
    return "none" if value is None else type(value).__qualname__


def _function_name(value: object) -> str:
    """What a function is called; of what is none, its class."""
    if value is None:
        return "none"
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


def _seed_of(generator: object) -> str:
    return f"seed {generator.initial_seed()}" if type(generator) is torch.Generator else "none"


def random_states() -> dict[str, str]:
    """Digests of the states that the generators of Python, NumPy and torch on the CPU are in; nothing is drawn."""
    numpy_state = np.random.get_state(legacy=True)
    return {
        "python": xxhash.xxh64_hexdigest(repr(random.getstate()).encode()),
        "numpy": xxhash.xxh64_hexdigest(
            repr([np.asarray(one).tolist() for one in numpy_state]).encode()
        ),
        "torch": digest_of(torch.get_rng_state()),
    }
