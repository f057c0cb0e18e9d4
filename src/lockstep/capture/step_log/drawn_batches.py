"""Digest the batches that torch's data loaders give, by data set; nothing of the script's is called."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import xxhash
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lockstep.capture.patching.patches import Patch
from lockstep.capture.silence import Silence
from lockstep.devices.methods import contiguous, detach, view
from lockstep.devices.tensor_numbers import raw_bytes

_MOST_LOADERS = 3
"""Loaders of one step that are told apart."""
_MOST_DATA_SETS = 64
_DEPTH = 4
_MOST_TENSORS = 64
_WHOLE_BYTES = 1 << 20
_PIECES, _PIECE_BYTES = 64, 1 << 14
"""A tensor of more than `_WHOLE_BYTES` is digested at so many places, evenly apart."""


class DrawnBatches:
    """Listens to the data loaders of the thread that it was begun in.

    heard: Is told that a batch was drawn, before it is counted.
    fail: Is told what went wrong in here.
    """

    def __init__(self, heard: Callable[[], object], fail: Callable[[Exception], None]) -> None:
        self._heard, self._fail = heard, fail
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._data_sets: list[Callable[[], Any]] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._drawn: dict[int, tuple[int, Any]] = {}
        self._patches = [
            Patch(DataLoader, "__iter__", self._wrap_iter),
            Patch(_BaseDataLoaderIter, "__next__", self._wrap_next),
        ]

    def listen(self) -> None:
        """Begin to listen."""
        for patch in self._patches:
            patch.put()

    def stop(self) -> None:
        """Listen no more."""
        for patch in self._patches:
            patch.take_back()

    def of_this_thread(self) -> None:
        """Listen to the thread that calls this."""
        self._thread = threading.get_ident()

    def take(self) -> dict[str, str]:
        """Return how many batches each loader has given since, with the digest of all of them."""
        drawn, self._drawn = self._drawn, {}
        first = sorted(drawn.items())[:_MOST_LOADERS]
        return {str(number): f"{count}:{digest.hexdigest()}" for number, (count, digest) in first}

    def _wrap_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            with Silence(self._fail):
                self._number(loader, iterator)
            return iterator

        return iterate

    def _number(self, loader: Any, iterator: Any) -> None:
        """Number data sets in the order in which they are iterated first: a script may make a loader each epoch."""
        if not isinstance(iterator, _BaseDataLoaderIter):
            return
        data_set = vars(loader).get("dataset")
        known = (place for place, one in enumerate(self._data_sets) if one() is data_set)
        place = next(known, None)
        if place is None and len(self._data_sets) < _MOST_DATA_SETS:
            place = len(self._data_sets)
            self._data_sets.append(_reference_to(data_set))
        if place is not None:
            self._numbers[iterator] = place

    def _wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def draw(iterator: Any) -> Any:
            batch = original(iterator)
            if threading.get_ident() == self._thread and os.getpid() == self._process:
                with Silence(self._fail):
                    self._add(iterator, batch)
            return batch

        return draw

    def _add(self, iterator: Any, batch: Any) -> None:
        number = self._numbers.get(iterator)
        if number is None:
            return
        self._heard()
        count, digest = self._drawn.get(number) or (0, xxhash.xxh32())
        for one, _ in zip(_tensors(batch, _DEPTH), range(_MOST_TENSORS), strict=False):
            _digest(one, digest)
        self._drawn[number] = count + 1, digest


def _reference_to(data_set: Any) -> Callable[[], Any]:
    """A reference that does not keep a data set alive; a list or a dict has none, and lives as long as the script."""
    try:
        return weakref.ref(data_set)
    except TypeError:
        return lambda: data_set


def _tensors(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    """The tensors on the host that a batch holds, in its order."""
    if isinstance(batch, torch.Tensor):
        if type(batch) is torch.Tensor and batch.is_cpu and batch.layout is torch.strided:
            yield batch
    elif depth and isinstance(batch, (list, tuple)):
        for one in batch:
            yield from _tensors(one, depth - 1)
    elif depth and type(batch) is not dict and hasattr(batch, "data") and hasattr(batch, "keys"):
        yield from _tensors(getattr(batch, "data", None), depth - 1)  # as of transformers
    elif depth and isinstance(batch, dict):
        for one in batch.values():
            yield from _tensors(one, depth - 1)


def _digest(tensor: torch.Tensor, digest: Any) -> None:
    """Digest shape, dtype and bytes of a tensor; of a large one in pieces."""
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    data = raw_bytes(view(contiguous(detach(tensor)), -1))
    if data.nbytes <= _WHOLE_BYTES:
        digest.update(data)
        return
    apart = (data.nbytes - _PIECE_BYTES) // (_PIECES - 1)
    for piece in range(_PIECES):
        digest.update(data[piece * apart : piece * apart + _PIECE_BYTES])
