"""A recorded tensor of any size, a few elements at a time."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from lockstep.core.mapped import release_pages
from lockstep.core.records import Array, Pieces, TensorRecord
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay


class Elements:
    """The elements of one recorded tensor, copied part by part; in its own shape where all are asked for."""

    def __init__(self, record: TensorRecord) -> None:
        self.numel = record.content.numel
        self.layout = record.layout
        self._record = record
        self._dtype = torch_dtype(record.dtype)

    def part(self, chunk: slice) -> torch.Tensor:
        """Some elements; a single one is part of every chunk."""
        stop = min(chunk.stop, self.numel)
        if self.numel <= 1 or (chunk.start == 0 and stop == self.numel):
            return load(self._record)
        elements = self._opened
        if isinstance(elements, np.ndarray):
            part = elements.reshape(-1)[chunk.start : stop]
        else:
            part = elements.part(chunk.start, stop)
        tensor = torch.from_numpy(np.array(part)).to(self._dtype)
        if isinstance(elements, np.ndarray):
            release_pages(elements)
        else:
            elements.release(chunk.start, stop)
        return tensor

    @cached_property
    def _opened(self) -> Array | Pieces:
        try:
            return self._record.content.opened()
        except LookupError as error:
            raise CannotReplay("not every tensor of it was saved whole") from error
