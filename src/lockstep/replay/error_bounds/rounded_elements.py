"""How the elements of a 16-bit result were rounded: how many as no sound kernel rounds, and whether to one side.

A norm does not tell: a kernel that truncates is off by twice the norm of one that rounds to nearest, and sound kernels
differ by more. Two counts do.

- *Misrounded*: elements outside of what sound kernels make of the double-precision result. One that adds a bias to a
  sum of products may round once, the whole, or twice, the sum and then the whole; both are right, and so is what lies
  between.
- *Bias*: errors of rounding to nearest have either sign as often. For signs that are drawn independently, whatever the
  sizes,

      P(|sum e_i| > t sqrt(sum e_i^2)) <= 2 exp(-t^2 / 2)

  (Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58, 1963, theorem 2, with each
  `e_i` in `[-|e_i|, |e_i|]`; as Efron, Student's t-test under symmetry conditions, JASA 64, 1969, uses it). Errors of
  truncation lie between 0 and one unit in the last place: their mean is 0.87 of their root mean square.

Unbiased rounding at random is told by the first alone: not where this machine's own kernels round several times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from lockstep.judge.tolerances import BIAS_DEVIATIONS, KERNEL_ROUNDINGS, LOCAL_MARGIN, SINGLE
from lockstep.replay.error_bounds.distance import rounded

Mask = torch.Tensor | None
"""Which elements are looked at, of the result's shape; None for all."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The values that correct kernels may round a result to.

    truth: What double precision gives, in double precision.
    dtype: The 16-bit dtype that it is rounded to.
    made: What sound kernels make of it, numbers of that dtype in double precision.
    """

    truth: torch.Tensor
    dtype: torch.dtype
    made: tuple[torch.Tensor, ...]

    @classmethod
    def once(cls, truth: torch.Tensor, dtype: torch.dtype) -> Envelope:
        """Of kernels that round the whole, once."""
        return cls(truth, dtype, (rounded(truth, dtype),))

    def or_twice(self, products: torch.Tensor) -> Envelope:
        """Of kernels too that round a sum of products, in double precision here, before they add what is added."""
        twice = rounded(rounded(products, self.dtype) + (self.truth - products), self.dtype)
        return Envelope(self.truth, self.dtype, (*self.made, twice))

    def outside(self, actual: torch.Tensor, where: Mask = None) -> float:
        """Share of elements that no sound kernel rounds so, dimensionless."""
        lowest, highest = reduce(torch.minimum, self.made), reduce(torch.maximum, self.made)
        inside = (actual >= lowest) & (actual <= highest)
        wrong = ~(inside | (actual.isnan() & self.truth.isnan()))
        wrong = wrong if where is None else wrong[where]
        return float(wrong.double().mean()) if wrong.numel() else 0.0

    @property
    def ties(self) -> torch.Tensor:
        """Elements that lie halfway between two numbers of the dtype: any noise takes them to either."""
        single = self.truth.float()
        infinity = torch.full_like(single, math.inf)
        above = torch.nextafter(single, infinity).to(self.dtype)
        below = torch.nextafter(single, -infinity).to(self.dtype)
        return (single.double() == self.truth) & (above != below)


@dataclass(frozen=True, slots=True)
class Bias:
    """How far the errors of a result lie to one side, over their root mean square: dimensionless, at most 1.

    size: Towards zero or away from it, or down or up, whichever is more.
    chance: What chance may make of it.
    spread: Root mean square of the errors, in units in the last place.
    """

    size: float = 0.0
    chance: float = 0.0
    spread: float = 0.0


def bias_of(
    actual: torch.Tensor, envelope: Envelope, noise: float, where: Mask = None, *, rows: bool
) -> Bias:
    """How far the errors of a result lie to one side.

    An error of more than one unit in the last place counts as one, so that no few elements decide.

    actual, envelope: The result, in double precision, and what it is held against.
    noise: Root mean square of what single precision is off inside, in the tensor's unit: elements that cancel to less
        than that have no last place to count in.
    where: Which elements count.
    rows: Whether elements along the last axis share roundings of what they have in common (a mean, a maximum): then
        each row counts as one draw.
    """
    truth, info = envelope.truth, torch.finfo(envelope.dtype)
    counts = actual.isfinite() & (truth.abs() >= info.tiny) & (truth.abs() <= info.max)
    counts = counts if where is None else counts & where
    _, exponent = torch.frexp(truth.abs().clamp_min(info.tiny))
    spacing = torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)
    errors = ((truth - actual) / (spacing + LOCAL_MARGIN * noise)).clamp(-1.0, 1.0)
    errors = errors.masked_fill(~counts, 0.0)
    count, squares = float(counts.sum()), float(errors.square().sum())
    if not squares:
        return Bias()
    spread, found = math.sqrt(squares / count), []
    for signed in (errors * truth.sign(), errors):
        draws = signed.sum(-1) if rows and signed.ndim > 1 else signed
        chance = BIAS_DEVIATIONS * math.sqrt(float(draws.square().sum()))
        found.append((abs(float(signed.sum())), chance))
    scale = count * spread
    return Bias(max(one for one, _ in found) / scale, max(one for _, one in found) / scale, spread)


def allowed_bias(held: Bias, sound: Sequence[Bias], unit: float, times: float) -> float:
    """How far the errors of a result may lie to one side, over their root mean square.

    By chance; `times` as far as those of sound kernels, where numbers repeat or are rounded inside; and as what single
    precision inside may leave, `KERNEL_ROUNDINGS` of the result, is of one unit in the last place (`unit` is the
    roundoff of the dtype, and a number is at most `1 / unit` of its last places).
    """
    seen = max((one.size for one in sound), default=0.0)
    inside = KERNEL_ROUNDINGS * SINGLE / unit
    return held.chance + times * seen + (inside / held.spread if held.spread > 0 else 0.0)
