"""Whether the calls of two runs compute one function of the same numbers, in 16 bits too.

Beside roundings to 16 bits a factor of 1.003 is small: for bfloat16 it is less than one unit in the last place. Yet
roundings are no part of a function. Run again in double precision, with no cast on the way, two sound ways to write one
function give the same numbers on the same inputs, to some roundings of single precision (what constants that were
computed in it are off). What is left is what the two functions differ by, whatever the dtype was.

Two kinds of numbers were rounded to 16 bits before they enter, and that stays:

- A constant, a tensor of one element that one run alone takes: off by its unit roundoff at most, and what that makes of
  the result is allowed.
- A tensor that enters one run's calls alone, as the other run computes with what it was made from. Its elements are
  drawn anew within their rounding. The result may be off by the distance that this makes, and along itself (a factor)
  by `BIAS_DEVIATIONS` standard deviations of what it makes there: roundings have either sign as often, so that all of
  them together change the size of a result by less the more there are (Hoeffding, Probability inequalities for sums of
  bounded random variables, JASA 58, 1963, theorem 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.records import TensorRecord
from lockstep.judge.tolerances import (
    BIAS_DEVIATIONS,
    LOCAL_MARGIN_16_BIT,
    MASK_MAGNITUDE,
    SENTINEL_MAGNITUDE,
    SINGLE,
)
from lockstep.replay.calls.rerun import Alter, Precision
from lockstep.replay.chains.region import RegionRun
from lockstep.replay.error_bounds.distance import error_of, perturbed, size_of
from lockstep.replay.error_bounds.margin import Local, Margin

_DRAWS = 8
"""How often numbers are drawn anew within their rounding: a standard deviation of so few is a third of the true one
once in a thousand times."""

_Given = Mapping[int, TensorRecord]


@dataclass(frozen=True, slots=True)
class _Run:
    """One run's calls, and which numbers enter them: `given` stands for some of them."""

    calls: RegionRun
    given: _Given

    def gives(self, altered: Mapping[int, Alter] | None = None) -> torch.Tensor:
        return self.calls.run(
            Precision.DOUBLE, given=self.given, altered=altered or {}, casts=False
        )

    @property
    def entering(self) -> dict[object, TensorRecord]:
        """The numbers that enter, by digest, or content where there is none."""
        found: dict[object, TensorRecord] = {}
        for record in self.calls.entering:
            if is_floating(record.dtype):
                number = self.given.get(record.content.id, record)
                found[number.digest or number.content.id] = record
        return found


def functions_apart(
    left: RegionRun, right: RegionRun, given: _Given, undefined: torch.Tensor
) -> Local:
    """How far apart two functions are without any rounding on the way, and what may be left.

    left, right: The calls of the two runs.
    given: What takes the place of what enters the second, by number: the first one's tensors.
    undefined: Elements that follow from nothing but by which number a mask leaves out; they are not looked at.

    Raises CannotReplay if a call cannot be run again so.
    """
    one, two = _Run(left, {}), _Run(right, given)
    where = ~undefined
    truth = one.gives()
    other = where_both_leave_out(truth, two.gives())
    shaken = left.run(Precision.DOUBLE, alter=perturbed(SINGLE, 0), casts=False)
    error, norm = error_of(other, truth, where), size_of(truth, where).norm
    noise = error_of(shaken, truth, where).norm
    tolerance = Margin.of_calls(SINGLE, norm).tolerance(error, noise)
    tolerance += _of_constants(one, two) + _of_constants(two, one)
    draws = [change for change in _drawn(one, two, where) if change.any()]
    if not draws or error.norm <= tolerance or not math.isfinite(error.norm):
        return Local(error, tolerance, norm)
    rounded = max(float(change.norm()) for change in draws)
    tolerance += LOCAL_MARGIN_16_BIT * rounded
    direction = truth[where].nan_to_num(0.0, 0.0, 0.0) / norm
    along = math.sqrt(sum(float(change @ direction) ** 2 for change in draws) / len(draws))
    factor = float((other - truth)[where].nan_to_num(0.0, 0.0, 0.0) @ direction)
    inside = Margin.of_calls(SINGLE, norm).tolerance(error, noise)
    return Local(
        error,
        tolerance,
        norm,
        bias=abs(factor) / norm,
        allowed_bias=(BIAS_DEVIATIONS * along + inside) / norm,
    )


def where_both_leave_out(truth: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The second of two results, with the first's elements where both mean `left out`: a mask's -inf, -3e38 or -1e9."""
    if not truth.dtype.is_floating_point:
        return other
    large = (truth.abs() >= MASK_MAGNITUDE) & (other.abs() >= MASK_MAGNITUDE)
    sentinels = (truth.abs() > SENTINEL_MAGNITUDE) | (other.abs() > SENTINEL_MAGNITUDE)
    return torch.where(large & sentinels & (truth.sign() == other.sign()), truth, other)


def _unshared(run: _Run, other: _Run, *, constants: bool) -> list[TensorRecord]:
    """What enters one run's calls alone and was rounded to 16 bits: constants, or what has more elements."""
    shared = other.entering
    return [
        record
        for key, record in run.entering.items()
        if key not in shared
        and unit_roundoff(record.dtype) > SINGLE
        and (record.content.numel == 1) is constants
    ]


def _of_constants(run: _Run, other: _Run) -> float:
    """What the roundings of constants that one run alone takes make of its result, as a distance."""
    records = _unshared(run, other, constants=True)
    if not records:
        return 0.0
    truth = run.gives()
    return sum(
        error_of(run.gives({one.content.id: _larger(unit_roundoff(one.dtype))}), truth).norm
        for one in records
    )


def _larger(unit: float) -> Alter:
    def alter(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * (1.0 + unit)

    return alter


def _drawn(one: _Run, two: _Run, where: torch.Tensor) -> Iterator[torch.Tensor]:
    """What roundings of tensors that one run alone takes make of its result: changes, each of shape (n,)."""
    for run, other in ((one, two), (two, one)):
        records = _unshared(run, other, constants=False)
        if not records:
            continue
        truth = run.gives()
        for seed in range(_DRAWS):
            altered: dict[int, Alter] = {
                record.content.id: perturbed(unit_roundoff(record.dtype), seed)
                for record in records
            }
            yield (run.gives(altered) - truth)[where].nan_to_num(0.0, 0.0, 0.0)
