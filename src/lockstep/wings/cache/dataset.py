"""`CachedDataset`: a data set whose samples are taken from the cache where they are there, and put there where not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from lockstep.core.errors import UsageError
from lockstep.wings.cache.client import AGAIN_S, DaemonGoneError, RefusedError
from lockstep.wings.cache.pipeline_checksum import Pipeline, pipeline_of
from lockstep.wings.cache.places import address_of
from lockstep.wings.cache.random_watch import RandomWatch, drawing_by
from lockstep.wings.cache.sample_layout import CannotLayOutError, lay_out
from lockstep.wings.cache.samples import MISSING, OtherPipelineError, Samples, say_gone, say_once
from lockstep.wings.cache.twin import comes_out_otherwise

_TWINS = 2
"""Samples of a new session that are computed twice."""

TransformKey = Callable[[int], object] | str | None


class CachedDataset(Dataset[Any]):
    """A map-style data set that keeps its samples in the cache, for all processes and trainings of this machine.

    Each sample is bitwise that of the data set itself. A cache that is not there, is full or dies costs speed, never a
    sample: the data set itself then gives it. What a training writes into a sample stays its own.

    Parameters
    ----------
    dataset
        With `len()` and `[index]`; anything in it counts that decides about samples: its code, attributes, files. A
        sample that draws random numbers, or comes out otherwise a second time, is never cached, nor is any other of
        its session then, and that is said.
    session
        A name under which equal pipelines share samples; None for one that follows from the pipeline.
    transform_key
        What a sample depends on besides its index: a text, or a function from the index to one, as in
        `lambda index: f"epoch {epoch}"`. Random numbers are then drawn by this key and the index, with the cache
        and without it, and the training's own generators stay where they were.
    address
        Of the daemon; "" for what LOCKSTEP_CACHE names, or this user's own.
    ignore
        Names of attributes that do not matter to samples, as of a counter.

    Raises
    ------
    UsageError
        If the session holds samples of another pipeline: the text says what differs.

    Examples
    --------
    >>> from lockstep.cache import CachedDataset
    >>> samples = CachedDataset([{"x": 1.5}, {"x": 2.5}])
    >>> samples[1], len(samples)
    ({'x': 2.5}, 2)
    """

    def __init__(
        self,
        dataset: Any,
        *,
        session: str | None = None,
        transform_key: TransformKey = None,
        address: str = "",
        ignore: Sequence[str] = (),
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UsageError(
                "CachedDataset takes a data set with len() and [index]; cached() takes a stream"
            )
        self.dataset = dataset
        self._session, self._key, self._ignore = session or "", transform_key, tuple(ignore)
        self._address = address_of(address)
        self._reset()
        self._connect()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._samples: Samples | None = None
        self._pipeline: Pipeline | None = None
        self._watch = RandomWatch()
        self._twins = _TWINS
        self._refused = False
        self._again_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        names = ("dataset", "_session", "_key", "_ignore", "_address")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """What else the data set has, as `classes`."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: Any) -> Any:
        """The sample of an index."""
        row = self._row(index)
        samples = self._connected() if row is not None else None
        if samples is None or row is None:
            return self._compute(index)
        variant = self._variant(index)
        try:
            found = samples.get(row, variant)
            if found is not MISSING:
                return found
        except DaemonGoneError as error:
            say_gone(self._address, error)
            return self._compute(index)
        except RefusedError:
            return self._compute(index)
        return self._computed(samples, [index], [row], variant)[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """The samples of several indices, as DataLoader asks for a batch."""
        return [self[index] for index in indices]

    # ------------------------------------------------------------------------------- connection

    def _connected(self) -> Samples | None:
        """The session, attached by this process and for the pipeline as it is; None where there is none to be had."""
        if self._process != os.getpid():
            self._reset()
        if self._pipeline is not None and not self._pipeline.has_changed():
            if self._samples is not None and self._samples.is_alive:
                return self._samples
            if self._refused or time.monotonic() < self._again_s:
                return self._samples
        else:
            self._samples = None
        try:
            self._connect()
        except OtherPipelineError as error:
            self._refused = True
            say_once(f"{error}; samples are loaded as without the cache")
        return self._samples

    def _connect(self) -> None:
        self._pipeline = pipeline_of(self.dataset, self._ignore)
        self._pipeline.description["samples"] = str(len(self))
        self._pipeline.description["drawn"] = "by key" if self._key is not None else "not at all"
        self._watch = RandomWatch(self._pipeline.generators)
        self._refused = False
        self._again_s = time.monotonic() + AGAIN_S
        try:
            self._samples = Samples(self._address, self._session, self._pipeline, len(self))
        except DaemonGoneError as error:
            say_gone(self._address, error)
        except RefusedError as error:
            self._refused = True
            say_once(f"{error}; samples are loaded as without the cache")

    # ----------------------------------------------------------------------------------- samples

    def _row(self, index: Any) -> int | None:
        """A whole number from 0 on; None for what the data set has to make of it itself."""
        if type(index) is not int and not isinstance(index, np.integer):
            return None
        return int(index) if 0 <= index < len(self.dataset) else None

    def _variant(self, index: Any) -> str:
        """The table of a sample: by the key of the user's, and by the kind of number that the data set was given."""
        kind = "" if type(index) is int else type(index).__name__
        return kind if self._key is None else f"{kind}/{self._key_of(int(index))}"

    def _key_of(self, row: int) -> str:
        return str(self._key(row) if callable(self._key) else self._key)

    def _compute(self, index: Any) -> Any:
        if self._key is None:
            return self.dataset[index]
        own = self._pipeline.generators if self._pipeline else ()
        with drawing_by(f"{self._key_of(index)}/{int(index)}", own):
            return self.dataset[index]

    def _computed(
        self, samples: Samples, indices: list[Any], rows: list[int], variant: str
    ) -> list[Any]:
        """Compute samples and put them into the cache, unless they are random."""
        before = self._watch.state() if self._key is None else ()
        found = [self._compute(index) for index in indices]
        drawn = self._watch.drawn(before) if self._key is None else ""
        try:
            if drawn:
                samples.refuse(f"sample {rows[0]} draws from {drawn}{_ADVICE}")
            elif self._is_the_same_twice(samples, indices[0], rows[0], found[0]):
                samples.put(list(zip(rows, found, strict=True)), variant)
        except DaemonGoneError as error:
            say_gone(self._address, error)
        except RefusedError:
            pass
        return found

    def _is_the_same_twice(self, samples: Samples, index: Any, row: int, sample: Any) -> bool:
        if samples.proven or not self._twins:
            return True
        try:
            expected = lay_out(sample).checksum
        except CannotLayOutError:
            return True
        other = comes_out_otherwise(lambda: self._compute(index), expected)
        if other:
            samples.refuse(f"sample {row} comes out otherwise each time{_ADVICE}")
            return False
        self._twins -= 1
        if other is None:
            samples.say_once("whether samples come out the same twice could not be seen")
        elif not self._twins:
            samples.prove()
        return True


_ADVICE = "; it is not cached: give transform_key, or cache the data set below what is random"
