"""Numbers about runs of contiguous elements, each distinct run measured once: digest, statistics, sketch, whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lockstep.capture.tensors.content_sink import ContentSink
from lockstep.core.formulas import Formula, Stored
from lockstep.core.records import Statistics
from lockstep.devices.methods import cpu, data_ptr, numel
from lockstep.devices.on_device.choice import pending
from lockstep.devices.tensor_numbers import (
    digest_of,
    dtype_name,
    finite_norm,
    measured,
    numbers_of,
    raw_bytes,
)
from lockstep.kernels.glance import sample
from lockstep.kernels.jit import available, ready
from lockstep.store.tensors import RawTensor, can_store

_LARGE_BYTES = 1 << 18
"""From which size on a look at some elements costs nothing beside the rest."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers about one run of contiguous bytes, whatever shape is laid over it."""

    digest: str | None = None
    statistics: Statistics | None = None
    sketch: bytes | None = None
    place: Stored | None = None
    note: str = ""
    """Why some of it was not taken."""


NOT_MEASURED = Measured()


class Measurements:
    """Measures runs of elements, those that are known by their digest once.

    sink: Takes tensors that are saved whole.
    keeps_tensors, finite_alone: See `Contents`.
    """

    def __init__(self, sink: ContentSink, *, keeps_tensors: bool, finite_alone: bool) -> None:
        self._sink, self._keeps_tensors = sink, keeps_tensors
        self._finite_alone = finite_alone
        self._samples: set[tuple[int, torch.dtype, int]] = set()
        self._known: dict[tuple[str, torch.dtype], Measured] = {}

    def of(
        self, run: torch.Tensor, number: int, formula: Formula | None, *, with_sketch: bool
    ) -> Measured:
        """Measure a contiguous tensor, of any shape; as number `number` it is saved where it is saved."""
        there = None if self._keeps_tensors else pending(run, with_sketch=with_sketch)
        if there is not None:
            return self._known_as(run, *there.numbers())
        # The digest needs the bytes here, and numbers that are taken with it cost little more.
        run = cpu(run)
        norm = finite_norm(run) if self._finite_alone else None
        if norm is not None:
            unknown = math.nan
            return Measured(None, Statistics(unknown, unknown, unknown, norm, 0, 0, 0), None, None)
        if self._resembles_one_before(run):
            digest = digest_of(run)
            known = self._known.get((digest, run.dtype))
            if known is not None:
                return known
            statistics, sketch = numbers_of(run, with_sketch=with_sketch)
        else:
            digest, statistics, sketch = measured(run, with_sketch=with_sketch)
            known = self._known.get((digest, run.dtype))
            if known is not None:
                return known
        place = self.place(run, number, formula, statistics) if self._keeps_tensors else None
        return self._known_as(run, digest, statistics, sketch, place)

    def _known_as(
        self,
        run: torch.Tensor,
        digest: str,
        statistics: Statistics,
        sketch: npt.NDArray[np.float64] | None,
        place: Stored | None = None,
    ) -> Measured:
        """What was measured, or the same from before."""
        packed = None if sketch is None else np.ascontiguousarray(sketch, dtype="<f8").tobytes()
        found = Measured(digest, statistics, packed, place)
        return self._known.setdefault((digest, run.dtype), found)

    def place(
        self, run: torch.Tensor, number: int, formula: Formula | None, statistics: Statistics
    ) -> Stored | None:
        """Save a contiguous tensor on the host whole, as number `number`; None where its dtype cannot be saved."""
        dtype = dtype_name(run.dtype)
        if not can_store(dtype):
            return None
        formula = None if statistics.nan_count else formula
        shape, zeros = (numel(run),), statistics.zero_count
        raw = RawTensor(number, dtype, shape, raw_bytes(run), formula, zeros)
        return Stored(self._sink.add_tensor(raw), number)

    def _resembles_one_before(self, run: torch.Tensor) -> bool:
        """Whether a large tensor may well be known by its digest, so that its numbers need not be taken with it."""
        size = run.nbytes
        if size < _LARGE_BYTES or not available():
            return False
        # From all over: rows of an embedding that no token used are zero in many tensors.
        known = (size, run.dtype, _sampled(data_ptr(run), size))
        if known in self._samples:
            return True
        self._samples.add(known)
        return False


def _sampled(address: int, size: int) -> int:
    """`lockstep.kernels.glance.sample`, which is looked for at the first call."""
    global _sampled
    _sampled = ready(sample)
    return _sampled(address, size)
