"""Tensors in a different tool's files: known by their noted numbers, and read there on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lockstep.core.errors import CorruptError
from lockstep.core.records import Array, Statistics
from lockstep.store.tensors import RawTensor, can_store, decoded_elements

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LaterTensor:
    """A tensor that nobody has read yet, with the facts that are known.

    Parameters
    ----------
    dtype, shape
        As the framework names them: "bfloat16", (4, 128).
    statistics
        As the other tool took them, NaN for a number that it left out; None where there are none.
    digest
        Equal ones mean equal bytes, dtype and shape; `KIND:...`, so that two kinds are never held against each other.
    load
        Reads its bytes, in the order of this machine, row after row, shape (nbytes,); None where they were not kept.
    note
        Why numbers are missing, or "".
    place
        The file, for messages.
    """

    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics | None = None
    digest: str | None = None
    load: Callable[[], Bytes] | None = None
    note: str = ""
    place: str = ""

    @property
    def known_by(self) -> str | None:
        """Return the key by which two tensors of one run are equal: the digest, else all four numbers; None without.

        A digest that merely stands in a dump may be one of a later moment, so it counts with the numbers beside it.
        """
        numbers = self.statistics
        if numbers is None or (self.digest is not None and self.load is not None):
            return self.digest
        four = (numbers.minimum, numbers.maximum, numbers.mean, numbers.norm)
        if self.digest is not None:
            return f"{self.digest} with {four}"
        return None if self.note or any(map(math.isnan, four)) else f"numbers:{four}"


@dataclass(frozen=True, slots=True)
class ReadLater:
    """Reads one tensor from a different tool's file."""

    tensor: LaterTensor

    def __call__(self) -> Array:
        """The tensor; bfloat16 and float8 widened to float32, exactly.

        Raises
        ------
        CorruptError
            If it is not there any more, or is another one.
        """
        raw = self._raw()
        return decoded_elements(raw).reshape(self.tensor.shape)

    def undecoded(self, dtype: str) -> Array:
        """Its elements bit by bit, shape (numel,): bfloat16 as uint16, float8 as uint8.

        Raises
        ------
        CorruptError
            As when it is called.
        """
        if dtype != self.tensor.dtype:
            raise CorruptError(self.tensor.place, f"is {self.tensor.dtype}, not {dtype}")
        return self._raw().elements[1]

    def _raw(self) -> RawTensor:
        assert self.tensor.load is not None
        raw = RawTensor(0, self.tensor.dtype, self.tensor.shape, self.tensor.load())
        size = raw.elements[1].size
        if size != math.prod(self.tensor.shape):
            raise CorruptError(self.tensor.place, f"has {size} elements, not {self.tensor.shape}")
        return raw


_BY_FOLDER: dict[Path, dict[int, ReadLater]] = {}
"""Tensors by rank's directory and content: of recordings that this process made and will remove."""


def keep(directory: Path, content: int, tensor: LaterTensor) -> None:
    """Let whoever opens this rank's directory in this process read that content where it lies."""
    if tensor.load is not None and can_store(tensor.dtype):
        _BY_FOLDER.setdefault(directory, {})[content] = ReadLater(tensor)


def kept(directory: Path) -> Mapping[int, ReadLater]:
    """The tensors of a rank's directory that lie elsewhere, by content."""
    return _BY_FOLDER.get(directory, {})
