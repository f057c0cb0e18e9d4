"""The tensors that a run recorded, as the laws need them: whole, carried over from the step before, or as sketches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call, Sketch, Statistics, TensorRecord
from lockstep.core.sketch import SKETCH_SIZE, plan_of, sketch_of
from lockstep.core.sketch import distance as distance_of_sketches
from lockstep.devices.tensor_numbers import numbers_of
from lockstep.laws.distances import distance, row_of
from lockstep.laws.step_events import is_whole
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay

WIDENED = 1.2
"""How many times too far apart sketches may lie: their squared distance is like a chi-squared variable of 256 degrees
of freedom, which leaves 20 % in distance with probability 7e-6 (the law of `lockstep.core.sketch`, measured there)."""

_ROUNDOFF = 2.0**-53
_MIXING_TERMS = 32
"""About the root of the 4128 lanes that each number of a sketch adds up, with as much again for the order of sums."""


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a recorded tensor is from another one.

    distance: Euclidean; estimated where there is a sketch alone.
    factor, rounding: How many times too large the estimate may be, and what rounding within sketches adds to it.
    """

    distance: float
    factor: float = 1.0
    rounding: float = 0.0

    def allowed(self, plain: float) -> float:
        """Up to which distance a tensor is known to be no further off than `plain`."""
        return plain * self.factor + self.rounding


@dataclass(frozen=True)
class OwnNumbers:
    """What is known of one run's tensors in one step.

    sketches: By number of a content that is not whole.
    carried: What updates and calls of the step before left, run again, by number of the content that was recorded of
        it.
    """

    sketches: Mapping[int, Sketch] = field(default_factory=dict)
    carried: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def of(self, record: TensorRecord) -> torch.Tensor:
        """A tensor that enters: as it was recorded, or as the step before left it.

        Raises CannotReplay if it is neither whole nor carried over.
        """
        carried = None if is_whole(record) else self.carried.get(record.content.id)
        return load(record) if carried is None else carried

    def apart(self, records: Sequence[TensorRecord], truth: torch.Tensor) -> Apart:
        """How far the sum of recorded tensors is from another tensor.

        Of what is not whole, sketches are compared: they are linear, so the distance of two of them is an estimate of
        the Euclidean distance of the tensors, which is at most `WIDENED` times too large.

        Raises CannotReplay if there is not even a sketch.
        """
        if all(map(is_whole, records)):
            return Apart(distance(sum(widened(load(one)) for one in records), truth))  # type: ignore[arg-type]
        row = row_of(truth)
        numbers, sketch = numbers_of(row, with_sketch=True)
        if not all(_is_finite_alike(one, numbers) for one in records):
            return Apart(math.inf)
        actual = sum(self._sketch(one) for one in records)
        apart = distance_of_sketches(actual, sketch)  # type: ignore[arg-type]
        terms = _MIXING_TERMS + row.numel() / plan_of(row.numel()).row
        norm = 0.0 if math.isnan(numbers.norm) else numbers.norm  # nothing is finite
        return Apart(apart, WIDENED, _ROUNDOFF * terms * norm)

    def finite_sketch(self, record: TensorRecord) -> Sketch | None:
        """The sketch of a recorded tensor without NaN and infinities; None where there is none."""
        statistics = record.statistics
        if statistics is None or statistics.nan_count or statistics.inf_count:
            return None
        try:
            return self._sketch(record)
        except CannotReplay:
            return None

    def known_whole(self, call: Call) -> Call | None:
        """A call with all its tensors whole, those too that are their own sketch; None where one is known less well.

        A tensor of at most `SKETCH_SIZE` real elements is its own sketch, see `lockstep.core.sketch`.
        """
        records = [one if is_whole(one) else self._from_sketch(one) for one in call.records]
        known = tuple(one for one in records if one is not None)
        return replace(call, records=known) if len(known) == len(records) else None

    def _from_sketch(self, record: TensorRecord) -> TensorRecord | None:
        sketch, content = self.sketches.get(record.content.id), record.content
        statistics = record.statistics
        is_real = unit_roundoff(record.dtype) > 0 and not record.dtype.startswith("complex")
        if sketch is None or statistics is None or content.numel > SKETCH_SIZE or not is_real:
            return None
        if statistics.nan_count or statistics.inf_count:
            return None  # sketches count them as zero
        elements = sketch[: content.numel].reshape(record.shape)
        return replace(record, content=replace(content, loader=lambda: elements))

    def _sketch(self, record: TensorRecord) -> Sketch:
        if is_whole(record):
            return sketch_of(row_of(widened(load(record))).numpy())
        found = self.sketches.get(record.content.id)
        if found is None:
            raise CannotReplay("of some results neither numbers nor sketches were recorded")
        return found


def _is_finite_alike(record: TensorRecord, own: Statistics) -> bool:
    """Whether NaN and infinities stand at the same places: sketches count them as zero."""
    statistics = record.statistics
    if statistics is None:
        return False
    counted = bool(statistics.nan_count or statistics.inf_count)
    return statistics.not_finite == own.not_finite and counted == (own.not_finite is not None)
