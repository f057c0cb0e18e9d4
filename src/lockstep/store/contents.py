"""Tensor contents as they are asked for: numbers now, sketches and whole tensors when something looks at them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import polars as pl

from lockstep.core.errors import CorruptError
from lockstep.core.record import Array, Content, Sketch, Statistics
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.store import schema
from lockstep.store.tables import Chunks
from lockstep.store.tensors import TensorFiles

_CHUNKS_KEPT = 16
"""Chunks of contents that stay in memory: some 3 MB of sketches each, at most 4096 of 2 kB; those of a
step and of the parameters that the step before left."""


class StoredContents:
    """The distinct contents of one rank.

    A content is made when a step first speaks of it, and shared by all that speaks of it in this step and the next;
    nothing is kept for longer than somebody outside holds it, but for the latest chunks.

    Parameters
    ----------
    chunks
        The rank's tables.
    with_sketches
        Whether its sketches are read: they must be of today's plan.
    """

    def __init__(self, chunks: Chunks, *, with_sketches: bool) -> None:
        self._chunks, self._directory = chunks, chunks.directory
        self._with_sketches = with_sketches
        self._chunk = lru_cache(maxsize=_CHUNKS_KEPT)(self._read)
        self._tensors = TensorFiles(chunks.directory)
        self._latest: dict[int, Content] = {}
        self._shapes: dict[tuple[int | None, ...], tuple[int, ...]] = {}

    def of(self, places: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> dict[int, Content]:
        """Contents by number.

        Parameters
        ----------
        places
            Content numbers with their rows in the file, by chunk.

        Raises
        ------
        CorruptError
            If a row makes no sense.
        """
        known, found = self._latest, {}
        for chunk, (numbers, rows) in places.items():
            new = []
            for number, row in zip(numbers, rows, strict=True):
                if number in known:
                    found[number] = known[number]
                else:
                    new.append(row)
            if new:
                found.update(self._made(chunk, new))
        self._latest = found
        return found

    def _made(self, chunk: int, rows: list[int]) -> dict[int, Content]:
        frame, sketches = self._chunk(chunk)
        chosen = frame[rows].select(_COLUMNS)
        made = {}
        for row, values in zip(rows, chosen.iter_rows(), strict=True):
            sketch = StoredSketch(self, chunk, row) if sketches[row] is not None else None
            made[values[0]] = self._content(sketch, *values)
        return made

    def _content(
        self,
        sketch: StoredSketch | None,
        number: int,
        dtype: str,
        extents: list[int | None],
        device: str,
        digest: str | None,
        minimum: float | None,
        maximum: float | None,
        mean: float | None,
        norm: float | None,
        nan_count: int | None,
        inf_count: int | None,
        zero_count: int | None,
        stored: int | None,
        shard: int | None,
        note: str | None,
    ) -> Content:
        shape = self._shape(number, extents)
        statistics = None
        if norm is not None:
            statistics = Statistics(
                math.nan if minimum is None else minimum,
                math.nan if maximum is None else maximum,
                math.nan if mean is None else mean,
                norm,
                nan_count or 0,
                inf_count or 0,
                zero_count or 0,
            )
        return Content(
            number,
            sys.intern(dtype),
            shape,
            sys.intern(device),
            digest,
            statistics,
            sketch,
            note or "",
            None if shard is None else partial(self._load, shard, stored, shape),
        )

    def _shape(self, number: int, extents: list[int | None]) -> tuple[int, ...]:
        """A shape, kept once for all tensors that have it."""
        known = self._shapes.get(tuple(extents))
        if known is None:
            known = tuple(extent for extent in extents if extent is not None and extent >= 0)
            if len(known) < len(extents):
                raise CorruptError(
                    f"{self._directory}: tensor {number} has an impossible shape {tuple(extents)};"
                    " record again"
                )
            self._shapes[known] = known
        return known

    def _read(self, chunk: int) -> tuple[pl.DataFrame, list[bytes | None]]:
        """One chunk: everything but the sketches, and the sketches by row."""
        frame = self._chunks.read("contents", chunk, schema.CONTENTS)
        if not self._with_sketches:
            return frame.drop("sketch"), [None] * frame.height
        wrong = frame.filter(pl.col("sketch").bin.size() != _SKETCH_BYTES)
        if wrong.height:
            raise CorruptError(
                f"{self._directory}: the sketch of tensor {wrong['content'][0]} has a wrong length;"
                " record again"
            )
        return frame.drop("sketch"), frame["sketch"].to_list()

    def sketch(self, chunk: int, row: int) -> Sketch:
        """One sketch, float64 of shape (SKETCH_SIZE,); its chunk is read again where it was let go."""
        data = self._chunk(chunk)[1][row]
        assert data is not None
        return np.frombuffer(data, dtype="<f8")

    def _load(self, shard: int, stored: int | None, shape: tuple[int, ...]) -> Array:
        array = self._tensors.load(shard, stored)
        if array.size != math.prod(shape):
            raise CorruptError(
                f"{self._directory}: tensor {stored} has {array.size} elements, not {shape};"
                " record again"
            )
        return array.reshape(shape)


_SKETCH_BYTES = 8 * SKETCH_SIZE
_COLUMNS = [name for name in schema.CONTENTS if name != "sketch"]


@dataclass(frozen=True, slots=True)
class StoredSketch:
    """Reads one sketch when called."""

    contents: StoredContents
    chunk: int
    row: int

    def __call__(self) -> Sketch:
        """The sketch, float64 of shape (SKETCH_SIZE,)."""
        return self.contents.sketch(self.chunk, self.row)
