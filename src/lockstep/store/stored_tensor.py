"""A tensor that was saved whole, read from its shard on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.core.errors import CorruptError
from lockstep.core.formulas import Formula, Stored
from lockstep.core.records import Array, Pieces
from lockstep.store.derived.derived_tensor import Derived
from lockstep.store.tensor_files import TensorFiles


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
        if self.stored is None:
            return None
        found = self.files.find(Stored(self.shard, self.stored))
        return found.formula if isinstance(found, Derived) and not found.places.size else None

    def _check(self, size: int) -> None:
        if size != math.prod(self.shape):
            raise CorruptError(
                self.files.directory, f"tensor {self.stored} has {size} elements, not {self.shape}"
            )
