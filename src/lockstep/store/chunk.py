"""Collect the rows, contents and tensors of a rank until they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lockstep.store.encoding import Row
from lockstep.store.small_tensors import SmallContent
from lockstep.store.staging import Buffer
from lockstep.store.tensors import RawTensor

Copy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.uint8]], None]
"""Fills an array from another one."""

_ALIGNED_BYTES = 64


@dataclass(slots=True)
class Chunk:
    """Rows in order of time, and the contents that they mention."""

    calls: list[Row] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)
    contents: list[Row] = field(default_factory=list)
    small: list[SmallContent] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)
    buffer: Buffer | None = None
    used_bytes: int = 0
    ends: list[StepEnd] = field(default_factory=list)

    @property
    def content_count(self) -> int:
        """How many contents were added."""
        return len(self.contents) + len(self.small)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not (self.records or self.calls or self.contents or self.small or self.tensors)

    @property
    def has_rows(self) -> bool:
        """Whether something stands in it that tells where its contents belong."""
        return bool(self.records or self.calls)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a number of bytes fits into its buffer."""
        return self.buffer is not None and self.used_bytes + size_bytes <= self.buffer.nbytes

    def add(self, tensor: RawTensor, copy: Copy) -> None:
        """Copy a tensor into its buffer."""
        assert self.buffer is not None
        end = self.used_bytes + tensor.data.nbytes
        copied = self.buffer[self.used_bytes : end]
        copy(copied, tensor.data)
        self.tensors.append(dataclasses.replace(tensor, data=copied))
        self.used_bytes = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES

    def end_step(self, step: int) -> None:
        """Mark a step as complete: no later row belongs to it."""
        self.ends.append(self._end(step))

    def _end(self, step: int) -> StepEnd:
        return StepEnd(
            step,
            len(self.calls),
            len(self.records),
            len(self.contents),
            len(self.small),
            len(self.tensors),
        )

    def up_to_ends(self) -> Iterator[Chunk]:
        """Return parts of it up to each step's end, the latest first; not all of it."""
        for number, end in reversed(list(enumerate(self.ends, start=1))):
            if end == self._end(end.step):
                continue
            yield Chunk(
                self.calls[: end.calls],
                self.records[: end.records],
                self.contents[: end.contents],
                self.small[: end.small],
                self.tensors[: end.tensors],
                ends=self.ends[:number],
            )


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How much a chunk held when a step had ended."""

    step: int
    calls: int
    records: int
    contents: int
    small: int
    tensors: int
