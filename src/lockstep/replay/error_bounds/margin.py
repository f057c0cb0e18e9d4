"""Compute the tolerance of a result that was run again: one formula for a call, a chain of calls and an update.

Double precision on the recorded inputs gives the truth. Arithmetic like the result's own, run again, gives the noise:
how far a sound kernel is off here. Another sound kernel may be off some times that noise, and a few roundings whatever
the noise is. What tells the noise differs (one call in its own dtypes, a whole region of calls, inputs off by their
rounding, the other run where that is sound); how a tolerance follows from it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from lockstep.judge.tolerances import (
    FEW_ELEMENTS,
    KERNEL_ROUNDINGS,
    LOCAL_MARGIN,
    LOCAL_MARGIN_16_BIT,
    QUIET_UPDATE_ROUNDINGS,
    SINGLE,
    UPDATE_MARGIN,
)
from lockstep.replay.error_bounds.distance import Size, error_of, populations, size_of


@dataclass(frozen=True, slots=True)
class Local:
    """Local error of one result, with what a sound kernel may be off, in the tensor's unit.

    error, tolerance: In the population in which the error is largest against its tolerance.
    norm: Of the double-precision result there.
    misrounded, allowed_misrounded: Share of 16-bit results that are not the double-precision result rounded as sound
        kernels round it.
    bias, allowed_bias: How far the errors of 16-bit results lie to one side, over their root mean square.
    """

    error: Size
    tolerance: float
    norm: float
    misrounded: float = 0.0
    allowed_misrounded: float = 1.0
    bias: float = 0.0
    allowed_bias: float = math.inf

    @property
    def sound(self) -> bool:
        """Whether a sound kernel may have made it."""
        return self.error.norm <= self.tolerance and self.rounds_soundly

    @property
    def rounds_soundly(self) -> bool:
        """Whether its elements are rounded as a sound kernel may."""
        return self.misrounded <= self.allowed_misrounded and self.bias <= self.allowed_bias

    @property
    def excess(self) -> float:
        """How many times more than allowed, dimensionless; above 1 for what is not sound."""
        by_norm = _ratio(self.error.norm, self.tolerance)
        if self.error.norm <= self.tolerance and not self.rounds_soundly:
            return max(
                _ratio(self.misrounded, self.allowed_misrounded),
                _ratio(self.bias, self.allowed_bias),
            )
        return by_norm

    @property
    def relative(self) -> float:
        """Error over the norm of the result."""
        return _ratio(self.error.norm, self.norm)

    @property
    def allowed(self) -> float:
        """Tolerance over the norm of the result; the tolerance itself where that is zero."""
        return self.tolerance / self.norm if self.norm > 0 else self.tolerance

    @property
    def words_on_rounding(self) -> str:
        """How its elements are rounded as no sound kernel rounds them, or ""."""
        words = []
        if self.misrounded > self.allowed_misrounded:
            allowed = f"{self.allowed_misrounded:.2%} allowed"
            words.append(f"{self.misrounded:.2%} of its elements are misrounded, {allowed}")
        if self.bias > self.allowed_bias:
            words.append(
                f"its rounding errors lie to one side (mean over root mean square {self.bias:.2g},"
                f" {self.allowed_bias:.2g} allowed)"
            )
        return "; ".join(words)


def _ratio(above: float, below: float) -> float:
    if above == 0.0:
        return 0.0
    return above / below if below > 0 else math.inf


def worst(found: Iterable[Local]) -> Local:
    """The one that is furthest beyond what it may be off."""
    return max(found, key=lambda one: one.excess)


@dataclass(frozen=True, slots=True)
class Margin:
    """How a tolerance follows from noise.

    With `e` the error and `n` the effective number of elements that carry it (`Size.spread`), a result may be off

        factor * (1 + FEW_ELEMENTS / sqrt(n)) * max(noise, least) + always

    factor: How many times the noise of a sound kernel another may be off (`lockstep.judge.tolerances`).
    least: Noise that there is at any rate, in the tensor's unit.
    always: What is allowed whatever the noise, in the tensor's unit.
    """

    factor: float
    least: float = 0.0
    always: float = 0.0

    @classmethod
    def of_calls(cls, unit: float, norm: float, roundings: float = KERNEL_ROUNDINGS) -> Margin:
        """Of what operators gave, in a dtype of this unit roundoff and with this norm.

        In 16 bits what is computed inside is wider, and the result is rounded once: by a quarter of the unit roundoff
        at least. In single precision there are `roundings` of the result besides.
        """
        if unit > SINGLE:
            return cls(LOCAL_MARGIN_16_BIT, least=unit * norm / 4)
        return cls(LOCAL_MARGIN, always=roundings * unit * norm)

    @classmethod
    def of_update(cls, unit: float, norm: float) -> Margin:
        """Of what an optimizer made of a parameter or a state."""
        return cls(UPDATE_MARGIN, always=QUIET_UPDATE_ROUNDINGS * unit * norm)

    def times(self, error: Size) -> float:
        """How many times the noise a result may be off whose error is spread like this one."""
        return self.factor * (1.0 + FEW_ELEMENTS / math.sqrt(error.spread))

    def tolerance(self, error: Size, noise: float) -> float:
        """Return the tolerance, in the tensor's unit."""
        return self.times(error) * max(noise, self.least) + self.always


def noise_of(
    results: Iterable[torch.Tensor | None], truth: torch.Tensor, where: torch.Tensor | None
) -> float:
    """Largest finite distance of some re-runs from the truth, among the elements at `where`."""
    sizes = [error_of(result, truth, where).norm for result in results if result is not None]
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def within(
    actual: torch.Tensor,
    truth: torch.Tensor,
    noisy: Sequence[torch.Tensor],
    unit: float,
    where: torch.Tensor | None,
    *,
    known: float = 0.0,
) -> Local:
    """How far a tensor is from what calls give in double precision, and what it may be off.

    actual, truth: The tensor and what double precision gives.
    noisy: What arithmetic like its own gives.
    unit: Its unit roundoff.
    where: Which elements; None for all.
    known: Noise that is known otherwise: how far a sound run is off.
    """
    error, norm = error_of(actual, truth, where), size_of(truth, where).norm
    noise = max(known, noise_of(noisy, truth, where))
    return Local(error, Margin.of_calls(unit, norm).tolerance(error, noise), norm)


def within_each(
    actual: torch.Tensor,
    truth: torch.Tensor,
    noisy: Sequence[torch.Tensor],
    unit: float,
    *,
    known: float = 0.0,
) -> list[Local]:
    """As `within`, in each population of the truth."""
    return [within(actual, truth, noisy, unit, where, known=known) for where in populations(truth)]
