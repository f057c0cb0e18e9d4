"""Tensors in a different tool's files: known by their noted numbers, and read there on demand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.errors import CorruptError
from lockstep.core.records import Array
from lockstep.store.tensors import RawTensor, can_store, decoded_elements

if TYPE_CHECKING:
    from lockstep.core.read_calls import LaterTensor


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
