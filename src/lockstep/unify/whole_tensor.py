"""One tensor of which every rank has a part or a copy: its numbers, and how it is read on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lockstep.core.content_notes import Note, NoteKind
from lockstep.core.dims import COPIES, Dims, Mesh
from lockstep.core.read_calls import Bytes, LaterTensor
from lockstep.core.records import Content
from lockstep.store.tensors import can_store
from lockstep.store.written_calls import digested
from lockstep.unify.joined_parts import Array, Joined, UnlikeDimsError, joined


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one tensor on all ranks.

    by_rank: The content on each rank that has one.
    dims: What its axes mean; None where nothing says.
    mesh: Of all ranks, those that are missing too.
    name: As it is recorded; that of an optimizer's state tells whether it is made of squares.
    """

    by_rank: Mapping[int, Content]
    dims: Dims | None
    mesh: Mesh
    name: str = ""

    @property
    def first(self) -> Content:
        """Return the part of the first rank that has one."""
        return self.by_rank[min(self.by_rank)]

    @property
    def are_equal_copies(self) -> bool:
        """Whether all ranks hold the same, to the last bit, and nothing says that these are parts."""
        digests = {one.digest for one in self.by_rank.values()}
        return (
            len(digests) == 1
            and self.first.digest is not None
            and not (self.dims and self.dims.over)
        )

    def whole(self) -> tuple[LaterTensor, Joined | None]:
        """Return the tensor, and the findings of putting it together; None if there was only one part.

        Raises UnlikeDimsError if it cannot be put together; the message says why. Raises CorruptError if a part cannot
        be read.
        """
        if self.are_equal_copies:
            one = self.first
            load = None if one.loader is None or not can_store(one.dtype) else partial(_bytes, one)
            # Parts may be equal by chance, as zeros are: another shape on the other side is no operator's fault then.
            note = one.note if len(self.by_rank) == 1 else str(Note(NoteKind.JOINED, COPIES))
            later = LaterTensor(one.dtype, one.shape, one.statistics, one.digest, load, note)
            return later, None
        if self.dims is None:
            raise UnlikeDimsError("no dims say how its parts belong together")
        dtypes = {one.dtype for one in self.by_rank.values()}
        if len(dtypes) > 1:
            raise UnlikeDimsError(f"ranks hold it as {' and '.join(sorted(dtypes))}")
        if any(one.loader is None for one in self.by_rank.values()) or not can_store(
            self.first.dtype
        ):
            raise UnlikeDimsError("its elements were not kept (record with --save tensors)")
        found = self._joined()
        kind = NoteKind.COPIES_DIFFER if found.copies > 1 else NoteKind.JOINED
        note = str(Note(kind, self.dims.text))
        given = encoded(found.array, self.first.dtype)
        later = LaterTensor(self.first.dtype, found.array.shape, load=lambda: given, note=note)
        later = replace(digested(later), load=self._load)
        return later, replace(found, array=found.array[:0] if found.array.ndim else found.array)

    def _joined(self) -> Joined:
        assert self.dims is not None
        arrays = {rank: elements_of(one) for rank, one in self.by_rank.items()}
        return joined(arrays, self.dims, self.mesh, self.first.dtype, self.name)

    def _load(self) -> Bytes:
        return encoded(self._joined().array, self.first.dtype)


def elements_of(content: Content) -> Array:
    """Numbers; of float8, which cannot be added up here anyway, the bits."""
    if not content.dtype.startswith("float8"):
        return content.load()
    bits: Array = content.loader.undecoded(content.dtype)  # type: ignore[union-attr]
    return bits.reshape(content.shape)


def encoded(array: Array, dtype: str) -> Bytes:
    """The bytes of a tensor, row after row."""
    if dtype == "bfloat16":
        array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _bytes(content: Content) -> Bytes:
    return encoded(elements_of(content), content.dtype)


__all__ = ["Parts", "elements_of", "encoded"]
