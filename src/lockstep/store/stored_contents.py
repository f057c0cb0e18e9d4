"""Tensor contents as they are asked for: numbers now, sketches and whole tensors when something looks at them."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import polars as pl

from lockstep.core.errors import CorruptError
from lockstep.core.formulas import Formula, Stored
from lockstep.core.records import Array, Content, Pieces, Sketch
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.store import later_tensors, schema
from lockstep.store.content_rows import statistics_in
from lockstep.store.limits import MOST_ELEMENTS
from lockstep.store.tables import Chunks, LatestChunks
from lockstep.store.tensor_files import TensorFiles

_MOST_ROWS = 1 << 16
"""Contents of a rank that stay in memory at most, of 2 kB where they have a sketch."""

_MOST_CHUNKS = 256
"""Chunks of which the sketches stay in memory, over all ranks: those of 128 ranks of two recordings."""


class _ChunkSketches:
    """The sketches of one chunk by row; those of the chunks that were read longest ago are let go of."""

    __slots__ = ("__weakref__", "data", "present")

    def __init__(self, data: list[bytes | None]) -> None:
        self.present = bytes(one is not None for one in data)
        self.keep(data)

    def keep(self, data: list[bytes | None]) -> None:
        """Have sketches that were read, again."""
        self.data: list[bytes | None] | None = data
        key = ref(self)
        with _lock:
            _latest[key] = None
            _latest.move_to_end(key)
            over = [_latest.popitem(last=False)[0]() for _ in range(len(_latest) - _MOST_CHUNKS)]
        for one in over:
            if one is not None:
                one.data = None


_latest: OrderedDict[ReferenceType[_ChunkSketches], None] = OrderedDict()
_lock = Lock()


class StoredContents:
    """The distinct contents of one rank.

    A content is made when a step first speaks of it, and shared by all that speaks of it in this step and the next;
    nothing is kept for longer than somebody outside holds it, but for the latest chunks.

    chunks: The rank's tables.
    with_sketches: Whether its sketches are read: they must be of today's plan.
    """

    def __init__(self, chunks: Chunks, *, with_sketches: bool) -> None:
        self._chunks, self._directory = chunks, chunks.directory
        self._with_sketches = with_sketches
        self._rows = LatestChunks(chunks, "contents", schema.CONTENTS, self._split, _MOST_ROWS)
        self._tensors = TensorFiles(chunks.directory, chunks.files)
        self._shards: set[int] = set()
        self._later = later_tensors.kept(chunks.directory)
        self._latest: dict[int, Content] = {}
        self._shapes: dict[tuple[int | None, ...], tuple[int, ...]] = {}

    def of(self, places: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> dict[int, Content]:
        """Contents by number.

        places: Content numbers with their rows in the file, by chunk.

        Raises CorruptError if a row makes no sense.
        """
        known, found = self._latest, {}
        wanted: dict[int, list[int]] = {}
        for chunk, (numbers, rows) in places.items():
            for number, row in zip(numbers, rows, strict=True):
                if number in known:
                    found[number] = known[number]
                else:
                    wanted.setdefault(chunk, []).append(row)
        for (chunk, new), table in zip(wanted.items(), self._rows.of(list(wanted)), strict=True):
            found.update(self._made(chunk, new, *table))
        self._latest = found
        return found

    def _made(
        self, chunk: int, rows: list[int], frame: pl.DataFrame, sketches: _ChunkSketches
    ) -> dict[int, Content]:
        made = {}
        for row, values in zip(rows, frame[rows].iter_rows(), strict=True):
            sketch = StoredSketch(self, chunk, row) if sketches.present[row] else None
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
        *rest: Any,
    ) -> Content:
        shape = self._shape(number, extents)
        *numbers, stored, shard, note = rest
        if shard is not None:
            self._shards.add(shard)
        later = self._later.get(number)
        tensor = later if shard is None else StoredTensor(self._tensors, shard, stored, shape)
        return Content(
            number,
            sys.intern(dtype),
            shape,
            sys.intern(device),
            digest,
            statistics_in(numbers),
            sketch,
            note or "",
            tensor,
        )

    def _shape(self, number: int, extents: list[int | None]) -> tuple[int, ...]:
        """A shape, kept once for all tensors that have it."""
        known = self._shapes.get(tuple(extents))
        if known is None:
            known = tuple(extent for extent in extents if extent is not None and extent >= 0)
            if len(known) < len(extents) or math.prod(known) > MOST_ELEMENTS:
                raise CorruptError(
                    self._directory, f"tensor {number} has an impossible shape {tuple(extents)}"
                )
            self._shapes[known] = known
        return known

    def _split(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, _ChunkSketches]:
        """One chunk: everything but the sketches, and the sketches by row."""
        frame = pl.DataFrame(frame.get_columns())  # of its own, so that the one read stays as it is
        column = frame.drop_in_place("sketch")
        if not self._with_sketches:
            return frame, _ChunkSketches([None] * frame.height)
        sketches = column.to_list()
        for row, sketch in enumerate(sketches):
            if sketch is not None and len(sketch) != _SKETCH_BYTES:
                raise CorruptError(
                    self._directory,
                    f"the sketch of tensor {frame['content'][row]} has a wrong length",
                )
        return frame, _ChunkSketches(sketches)

    def sketch(self, chunk: int, row: int) -> Sketch:
        """One sketch, float64 of shape (SKETCH_SIZE,); its chunk is read again where it was let go."""
        kept = self._rows.one(chunk)[1]
        sketches = kept.data
        if sketches is None:
            (frame,) = self._chunks.many("contents", [chunk], schema.CONTENTS)
            sketches = self._split(frame)[1].data
            assert sketches is not None
            kept.keep(sketches)
        data = sketches[row]
        assert data is not None
        return np.frombuffer(data, dtype="<f8")

    def check_tensors(self) -> None:
        """Hold the files of all whole tensors that contents were made of against their digests.

        Raises CorruptError if one was changed.
        """
        self._tensors.check(sorted(self._shards))

    def close_tensors(self) -> None:
        """Close the files of whole tensors until one is read."""
        self._tensors.close()


_SKETCH_BYTES = 8 * SKETCH_SIZE


@dataclass(frozen=True, slots=True)
class StoredSketch:
    """Reads one sketch when called."""

    contents: StoredContents
    chunk: int
    row: int

    def __call__(self) -> Sketch:
        """The sketch, float64 of shape (SKETCH_SIZE,)."""
        return self.contents.sketch(self.chunk, self.row)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Reads one whole tensor when called.

    Parameters
    ----------
    files
        The shards of its rank.
    shard, stored
        Where it is stored.
    shape
        What the table of contents says of it.
    """

    files: TensorFiles
    shard: int
    stored: int | None
    shape: tuple[int, ...]

    def __call__(self) -> Array:
        """The tensor.

        Raises
        ------
        CorruptError
            If it is not there, is damaged, or has another number of elements.
        """
        array = self.files.load(self.shard, self.stored)
        self._check(array.size)
        return array.reshape(self.shape)

    def undecoded(self, dtype: str) -> Array:
        """Its elements bit by bit, shape (numel,): bfloat16 as uint16, float8 as uint8.

        Raises
        ------
        CorruptError
            As when it is called, or if it is of another dtype.
        """
        elements = self.files.undecoded(self.shard, self.stored, dtype)
        self._check(elements.size)
        return elements

    def pieces(self) -> Pieces:
        """The tensor, to be read in pieces.

        Raises
        ------
        CorruptError
            As when it is called.
        """
        pieces = self.files.open(self.shard, self.stored)
        self._check(pieces.size)
        return pieces

    @property
    def place(self) -> Stored | None:
        """Where it is stored, as formulas of the same rank name it."""
        return None if self.stored is None else Stored(self.shard, self.stored)

    def formula(self) -> Formula | None:
        """The formula that gives it to the last bit; None if it was kept as it is or corrected.

        Raises
        ------
        CorruptError
            If it is not there or is damaged.
        """
        return None if self.stored is None else self.files.formula(Stored(self.shard, self.stored))

    def _check(self, size: int) -> None:
        if size != math.prod(self.shape):
            raise CorruptError(
                self.files.directory, f"tensor {self.stored} has {size} elements, not {self.shape}"
            )
