"""One result of a call: what the candidate recorded, what is right, and how far apart noise may take the two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lockstep.core.records import TensorRecord
from lockstep.judge.tolerances import SENTINEL_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One output, buffer, gradient, parameter or state that a call gave.

    record, candidate: What the two runs recorded of it.
    actual, truth: Candidate's result and the right one, in double precision.
    counted: Elements that are finite in both and no sentinels.
    floor: Norm that noise may have, in the tensor's unit.
    """

    record: TensorRecord
    candidate: TensorRecord
    actual: torch.Tensor
    truth: torch.Tensor
    counted: torch.Tensor
    floor: float

    @property
    def error(self) -> float:
        """Norm of what is wrong."""
        return norm_of(self.actual - self.truth, self.counted)

    @property
    def right(self) -> bool:
        """Whether it is what it should be, to its noise floor."""
        return self.is_noise_from(self.truth)

    def floor_of(self, values: torch.Tensor) -> float:
        """Norm that noise may have next to other values: in proportion where these are larger."""
        size = norm_of(self.truth, self.counted)
        return self.floor * max(1.0, norm_of(values, self.counted) / size if size > 0 else 1.0)

    def distance_to(self, values: torch.Tensor) -> float:
        """Norm of what is left where values are taken for the result; infinite where infinities stand elsewhere."""
        if values.shape != self.actual.shape or not _same_infinities(self.actual, values):
            return math.inf
        return norm_of(self.actual - values, self.counted)

    def is_noise_from(self, values: torch.Tensor) -> bool:
        """Whether values are the result but for noise."""
        return self.distance_to(values) <= self.floor_of(values)


def counted_in(*tensors: torch.Tensor) -> torch.Tensor:
    """Elements that are finite in all tensors, and no sentinels."""
    found = torch.ones_like(tensors[0], dtype=torch.bool)
    for tensor in tensors:
        found &= tensor.isfinite() & (tensor.abs() <= SENTINEL_SIZE)
    return found


def norm_of(values: torch.Tensor, counted: torch.Tensor) -> float:
    """Euclidean norm of the elements that count."""
    found = float(torch.linalg.vector_norm(values[counted]))
    return found if math.isfinite(found) else math.inf


def spread_of(values: torch.Tensor, counted: torch.Tensor) -> float:
    """Effective number of elements that carry a tensor, `(sum e^2)^2 / sum e^4`."""
    squares = values[counted].square()
    peak = float(squares.max()) if squares.numel() else 0.0
    if peak == 0.0 or not math.isfinite(peak):
        return 0.0
    squares = squares / peak
    return float(squares.sum() ** 2 / squares.square().sum())


def _same_infinities(actual: torch.Tensor, values: torch.Tensor) -> bool:
    same = (actual == values) | (actual.isnan() & values.isnan())
    return bool((same | (actual.isfinite() & values.isfinite())).all())
