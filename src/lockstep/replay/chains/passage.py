"""Judge a tensor after calls without partner, by running both regions again as a whole.

Where the calls of both runs can be run again, two questions are asked. Is each run's tensor what its own calls give in
double precision on its own inputs, up to what arithmetic in its dtype is off (as for a single operator)? And do the two
runs' calls, in double precision on the *same* inputs, give the same: an operator written out by hand against a fused
one, one kind of mask against another? Where one run's calls cannot be run again (a compiled module, a custom function),
both runs are held against what the other's give on the inputs of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Kind
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, Region
from lockstep.judge.tolerances import LINEAR_REGIME, MOST_UNDEFINED, OTHER_MASK, SINGLE
from lockstep.measure.axis_order import keeps_order
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision
from lockstep.replay.chains.region import RegionRun
from lockstep.replay.chains.same_function import functions_apart, where_both_leave_out
from lockstep.replay.error_bounds.distance import error_of, perturbed, size_of
from lockstep.replay.error_bounds.margin import Local, within_each, worst
from lockstep.replay.verdicts.pairing import records_of
from lockstep.replay.verdicts.which_run import RUNS, both_alone, explained, fault, wrong_of

_MOST_WORK = 1 << 32
"""Elements that one comparison may write in re-runs of regions; what comes then is left to the next judge."""

_RUNS = 9
"""About how often a region is run for one verdict."""


@dataclass(frozen=True, slots=True)
class AfterRegion:
    """One run's tensor after a region; a `lockstep.replay.verdicts.which_run.Held`.

    record: The tensor.
    actual, truth, noisy: It, what double precision makes of the region's inputs, and what arithmetic like its own makes
        of them.
    undefined: Elements that follow from nothing but by which number a mask leaves out: rows of which it leaves all out,
        such as padding at the left under a causal mask.
    """

    record: TensorRecord
    actual: torch.Tensor
    truth: torch.Tensor
    noisy: tuple[torch.Tensor, ...]
    undefined: torch.Tensor

    @property
    def unit(self) -> float:
        """Unit roundoff that it carries."""
        return unit_roundoff(self.record.dtype)

    def local(self, other: Local | None = None) -> Local:
        """How far it is off, in the population where that is most against what it may be."""
        known = 0.0 if other is None else other.error.norm
        return worst(within_each(self.actual, self.truth, self.noisy, self.unit, known=known))

    def defined(self, undefined: torch.Tensor) -> AfterRegion:
        """The same with zeros in what is not defined."""
        if not bool(undefined.any()):
            return self
        actual, truth, *noisy = (
            one.masked_fill(undefined, 0.0) for one in (self.actual, self.truth, *self.noisy)
        )
        return replace(self, actual=actual, truth=truth, noisy=tuple(noisy))


class Passages:
    """Judges tensors after regions; counts the work that this takes.

    memory_bytes: Memory that the whole process may take.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._work = 0

    def judged(self, sources: Sequence[Measured], target: Measured, region: Region) -> Judgement:
        """Judge a tensor after a region.

        Raises CannotReplay if neither run's calls can be run again, or doing so is not faithful to them.
        """
        reference, candidate = records_of(target)
        if max(unit_roundoff(reference.dtype), unit_roundoff(candidate.dtype)) < SINGLE:
            raise CannotReplay("it was computed in double precision itself")
        left = self._run_of(region.reference_calls, reference)
        right = self._run_of(region.candidate_calls, candidate)
        for_left, for_right = _crossed(sources)
        if isinstance(left, RegionRun) and isinstance(right, RegionRun):
            other = right.run(Precision.DOUBLE, given=for_right)
            units = _coarsest(region.reference_calls), _coarsest(region.candidate_calls)
            # What rounds on the way as the result is rounded anyway is no coarser run.
            least = min(unit_roundoff(reference.dtype), unit_roundoff(candidate.dtype))
            sides = (
                _by(left, reference, {}, like_its_own=units[0] <= max(units[1], least)),
                _by(right, candidate, {}, like_its_own=units[1] <= max(units[0], least)),
            )
            certain = _is_matched(right, for_right, left.entering)
            found = _verdict(sides, target, other, certain=certain)
            if certain and not found.unexplained and max(least, *units) > SINGLE:
                return _by_function(found, (left, right), for_right, sides, target)
            return found
        if isinstance(left, RegionRun):
            _check_matched(left, for_left, region.candidate_calls)
            return _verdict((_own(left, reference), _by(left, candidate, for_left)), target)
        if isinstance(right, RegionRun):
            _check_matched(right, for_right, region.reference_calls)
            return _verdict((_by(right, reference, for_right), _own(right, candidate)), target)
        raise left

    def _run_of(self, calls: Sequence[Call], target: TensorRecord) -> RegionRun | CannotReplay:
        try:
            found = RegionRun(calls, target)
            found.check_memory(self._memory_bytes)
        except CannotReplay as error:
            return error
        self._work += _RUNS * found.work
        if self._work > _MOST_WORK:
            return CannotReplay("regions that were run again before took all the time there is")
        return found


_Given = Mapping[int, TensorRecord]


def _crossed(sources: Sequence[Measured]) -> tuple[_Given, _Given]:
    """What takes the place of the reference's contents that enter, and of the candidate's: the other's.

    Only numbers of the same extents: a mask of -3.4e38 does not mean in one run's calls what a mask of truth values
    does in the other's. Each takes its own, where the two are the same mask.
    """
    left: dict[int, TensorRecord] = {}
    right: dict[int, TensorRecord] = {}
    for source in sources:
        one, two = source.pair.reference, source.pair.candidate
        if one is None or two is None or source.shape_differs:
            continue
        if not keeps_order(source.pair.layout):
            continue
        if source.equal and one.dtype != two.dtype:
            left[one.content.id], right[two.content.id] = one, two
        elif one.dtype == two.dtype or (is_floating(one.dtype) and is_floating(two.dtype)):
            left[one.content.id], right[two.content.id] = two, one
    return left, right


def _is_matched(run: RegionRun, given: _Given, others: Sequence[TensorRecord]) -> bool:
    """Whether all numbers that enter a run's calls are known in the other run; single numbers are constants."""
    digests = {record.digest for record in others}
    return all(
        record.content.id in given or record.digest in digests
        for record in run.entering
        if is_floating(record.dtype) and record.content.numel > 1
    )


def _check_matched(run: RegionRun, given: _Given, calls: Sequence[Call]) -> None:
    others = [record for call in calls for record in call.with_role(Role.INPUT)]
    if not _is_matched(run, given, others):
        raise CannotReplay("not all that enters is known in both runs")


def _coarsest(calls: Sequence[Call]) -> float:
    """Unit roundoff of the coarsest numbers that calls make: a run that rounds to fewer bits on the way is not the
    measure of what it may be off."""
    made = (record for call in calls for record in call.with_role(Role.OUTPUT))
    return max((unit_roundoff(record.dtype) for record in made), default=0.0)


def _own(run: RegionRun, record: TensorRecord) -> AfterRegion:
    """A run's tensor against its own calls."""
    return _by(run, record, {})


def _by(
    run: RegionRun, record: TensorRecord, given: _Given, *, like_its_own: bool = True
) -> AfterRegion:
    """A tensor against calls on `given` tensors.

    `like_its_own` tells whether the same calls in their own dtypes show what arithmetic may be off.
    """
    truth = run.run(Precision.DOUBLE, given=given)
    unit = min(unit_roundoff(record.dtype), SINGLE)
    noisy = [run.run(Precision.DOUBLE, given=given, alter=perturbed(unit, 0))]
    if like_its_own:
        with suppress(CannotReplay):  # where there is no kernel of that dtype here
            noisy.append(run.run(Precision.OWN, given=given))
    otherwise = run.run(Precision.DOUBLE, given=given, alter_masks=perturbed(OTHER_MASK, 0))
    off = (otherwise - truth).abs()
    undefined = (off > OTHER_MASK * truth.abs().clamp_min(truth.abs().mean())) | off.isnan()
    undefined &= truth.isfinite()
    undefined |= _stepping(run, given, truth, noisy[0], unit)
    if float(undefined.double().mean()) > MOST_UNDEFINED:
        raise CannotReplay("what it gives follows from the number by which a mask leaves out")
    return AfterRegion(record, widened(load(record)), truth, tuple(noisy), undefined)


def _stepping(
    run: RegionRun, given: _Given, truth: torch.Tensor, noisy: torch.Tensor, unit: float
) -> torch.Tensor:
    """Elements that a rounding of what enters takes to another value, as `ceil` does next to a whole number.

    They tell nothing, and how far they step is no measure of what the other elements may be off.
    """
    size = truth.abs().nan_to_num(0.0, 0.0, 0.0).mean()

    def steps(other: torch.Tensor) -> torch.Tensor:
        return (other - truth).abs() > LINEAR_REGIME * size

    found = steps(noisy)
    if bool(found.any()):
        for factor in (1.0 + unit, 1.0 - unit):
            found |= steps(
                run.run(Precision.DOUBLE, given=given, alter=partial(torch.mul, other=factor))
            )
    return found


def _verdict(
    sides: tuple[AfterRegion, AfterRegion],
    target: Measured,
    other: torch.Tensor | None = None,
    *,
    certain: bool = True,
) -> Judgement:
    """The verdict by both sides, and by `other`, what the candidate's calls give on the reference's inputs.

    `certain` tells whether all that enters them was the reference's.
    """
    undefined = sides[0].undefined | sides[1].undefined
    sides = sides[0].defined(undefined), sides[1].defined(undefined)
    other = None if other is None else torch.where(undefined, sides[0].truth, other)
    alone = both_alone(*sides)
    neither = "what either run recorded is far from what its calls give"
    wrong = wrong_of((alone[0].sound, alone[1].sound), neither)
    if wrong is None:
        apart = None if other is None else _apart(sides, other, alone)
        if apart is not None and not apart.sound:
            if not certain:
                raise CannotReplay("not all that enters is known in both runs")
            most = max(one.relative for one in alone)
            words = (
                "what the two runs call here, run again in double precision on the same inputs, gives results"
                f" rel {apart.relative:.2g} apart; each run is within {most:.2g} of its own"
            )
            return fault(target, apart.excess, words)
        inherited = error_of(sides[1].truth, sides[0].truth).norm
        return explained(target, alone, inherited)
    off, other_off = alone[wrong].relative, alone[1 - wrong].relative
    words = (
        "all calls since what both runs have, run again in double precision on its own inputs: the"
        f" {RUNS[wrong]} is off by rel {off:.2g}, the {RUNS[1 - wrong]} by {other_off:.2g}"
    )
    lower = wrong == 0 and sides[0].unit > sides[1].unit
    return fault(
        target, alone[wrong].excess, words, kind=Kind.MORE_ACCURATE if lower else Kind.FAULT
    )


def _by_function(
    found: Judgement,
    runs: tuple[RegionRun, RegionRun],
    given: _Given,
    sides: tuple[AfterRegion, AfterRegion],
    target: Measured,
) -> Judgement:
    """The verdict by what the two runs' calls compute without the roundings to 16 bits that hide a small factor."""
    try:
        apart = functions_apart(*runs, given, sides[0].undefined | sides[1].undefined)
    except CannotReplay:
        return found
    if apart.sound:
        return found
    words = (
        "what the two runs call here, run again in double precision without a rounding on the same inputs, gives"
        f" results rel {apart.relative:.2g} apart"
    )
    if apart.rounds_soundly:
        words = f"{words}, where the numbers that enter allow {apart.allowed:.2g}"
    else:
        words = f"{words}, to one side: roundings of either sign leave rel {apart.allowed_bias:.2g}"
    return fault(target, apart.excess, words)


def _apart(
    sides: tuple[AfterRegion, AfterRegion], other: torch.Tensor, alone: Sequence[Local]
) -> Local:
    """How far apart the two functions are, against what both runs may be off."""
    truth = sides[0].truth
    error = error_of(where_both_leave_out(truth, other), truth)
    return Local(error, max(one.tolerance for one in alone), size_of(truth).norm)
