"""The verdict on numbers: local errors of both runs, what is inherited, and in words."""

from __future__ import annotations

import math

import torch

from lockstep.core.finding import Kind
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, Rounding
from lockstep.judge.tolerances import (
    AMPLIFIED,
    FOLLOWS_SETTING,
    ROUNDS_MORE_OFTEN,
    SINGLE,
    ULP_LIMITS,
)
from lockstep.measure.measured_pair import Measured
from lockstep.replay.distance import error_of, size_of, ulp_shares
from lockstep.replay.lower_precision import recognised
from lockstep.replay.pairing import Pairing
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import widened
from lockstep.replay.side import Local, Reading, Side, local_error, relative_errors

FOLLOWS_OWN = "the result follows the candidate's own settings, not the reference's"


def numeric(
    pairing: Pairing, reference: TensorRecord, candidate: TensorRecord, output: Measured
) -> Judgement:
    left, right = pairing.reference, pairing.candidate
    if max(left.unit(reference), right.unit(candidate)) < SINGLE:
        raise CannotReplay("it was computed in double precision itself")
    reading = _reading(left, right, reference, candidate)
    if pairing.as_called is not None:
        found = _setting_shows(pairing.as_called, right, candidate, reading, output)
        if found is not None:
            return found
    alone = _both_alone(left, right, reference, candidate, reading)
    inherited = _inherited(left, right, reference, candidate, reading)
    if all(one.sound for one in alone):
        return _explained(alone, inherited, pairing, output)
    if not any(one.sound for one in alone):
        return _neither(pairing, reference, candidate, reading, alone, inherited, output)
    wrong = 0 if alone[1].sound else 1
    side, record = ((left, reference), (right, candidate))[wrong]
    rounding = recognised(side, record, reading, alone[wrong])
    words = _words(alone, side, record, reading, wrong, rounding)
    kind = Kind.FAULT
    lower = rounding or (side.unit(record) > SINGLE and alone[0].excess <= ROUNDS_MORE_OFTEN)
    if wrong == 0 and lower:
        kind = Kind.MORE_ACCURATE
    return fault(output, alone[wrong].excess, words, kind=kind, rounding=rounding)


def _both_alone(
    left: Side, right: Side, reference: TensorRecord, candidate: TensorRecord, reading: Reading
) -> tuple[Local, Local]:
    """Local errors of both runs; where they compute in one dtype, each sets what the other may."""
    sides, records = (left, right), (reference, candidate)
    if left.unit(reference) != right.unit(candidate):
        return local_error(left, reference, reading), local_error(right, candidate, reading)
    usual = [
        relative_errors(side, record, reading) for side, record in zip(sides, records, strict=True)
    ]
    found = [
        local_error(side, record, reading, usual=other)
        for side, record, other in zip(sides, records, usual[::-1], strict=True)
    ]
    for wrong in (0, 1):
        other = found[1 - wrong]
        if other.sound and not found[wrong].sound:
            found[wrong] = local_error(
                sides[wrong], records[wrong], reading, other=other, usual=usual[1 - wrong]
            )
            break
    return found[0], found[1]


def _setting_shows(
    own: Side, replaced: Side, record: TensorRecord, reading: Reading, output: Measured
) -> Judgement | None:
    """Whether the candidate's result shows that it was called with another setting, and nothing but that.

    However small the effect: what was recorded follows the candidate's own argument, and not the
    reference's. What is further from double precision than that argument explains is a fault beside it.
    """
    actual, expected = replaced.actual(record), replaced.truth(record, reading)
    off = error_of(actual, expected).norm
    off_own = error_of(actual, own.truth(record, reading)).norm
    limit = max(FOLLOWS_SETTING * off_own, replaced.unit(record) * size_of(expected).norm)
    if not off > limit:
        return None
    excess = off / limit if limit > 0 else math.inf
    beside = local_error(own, record, reading)
    if beside.sound:
        return fault(output, excess, FOLLOWS_OWN, kind=Kind.SETUP)
    words = f"called with its own settings, the candidate is off by rel {beside.relative:.2g} all the same"
    return fault(output, beside.excess, words)


def _reading(left: Side, right: Side, reference: TensorRecord, candidate: TensorRecord) -> Reading:
    """The reading under which one of the two is nearest to double precision."""
    readings = left.readings(reference)
    if len(readings) == 1 and len(right.readings(candidate)) == 1:
        return readings[0]
    readings = list(dict.fromkeys([*readings, *right.readings(candidate)]))

    def distance(reading: Reading) -> float:
        return min(
            error_of(side.actual(record), side.truth(record, reading)).norm
            for side, record in ((left, reference), (right, candidate))
        )

    return min(readings, key=distance)


def _inherited(
    left: Side, right: Side, reference: TensorRecord, candidate: TensorRecord, reading: Reading
) -> float:
    """How far the two results would be apart if both operators were exact."""
    one, two = left.truth(reference, reading), right.truth(candidate, reading)
    return error_of(two, one).norm


def _explained(
    alone: tuple[Local, Local], inherited: float, pairing: Pairing, output: Measured
) -> Judgement:
    """Both sides are sound by themselves: what is left comes with the inputs."""
    scale = output.norm if output.norm > 0 else 1.0
    floor = alone[0].tolerance + alone[1].tolerance
    kappa = _condition(inherited / scale, pairing) if inherited > floor else 0.0
    amplified = kappa > AMPLIFIED
    return Judgement.handed_on(
        output,
        floor=floor,
        inherited=inherited,
        kind=Kind.AMPLIFIED if amplified else None,
        words=f"ill-conditioned here: the operator amplifies differences {kappa:.2g} times"
        if amplified
        else "",
    )


def _condition(relative: float, pairing: Pairing) -> float:
    """Relative difference that leaves over the one that enters, both in Euclidean norm."""
    entering = 0.0
    roles = (Role.INPUT, Role.GRAD_OUTPUT) if pairing.reference.backward else (Role.INPUT,)
    left, right = pairing.reference.call.with_role(*roles), pairing.candidate.call.with_role(*roles)
    for one, two in zip(left, right, strict=False):
        if one.shape != two.shape or one.digest == two.digest:
            continue
        before, after = (
            widened(pairing.reference.rerun.load(one)),
            widened(pairing.candidate.rerun.load(two)),
        )
        if before.dtype.is_floating_point and after.dtype.is_floating_point:
            size = max(size_of(before).norm, size_of(after).norm)
            entering = max(entering, error_of(after, before).norm / size if size > 0 else 0.0)
    return relative / entering if entering > 0 else 0.0


def _neither(
    pairing: Pairing,
    reference: TensorRecord,
    candidate: TensorRecord,
    reading: Reading,
    alone: tuple[Local, Local],
    inherited: float,
    output: Measured,
) -> Judgement:
    """Neither run is near double precision: both round lower, or the re-run is not faithful."""
    roundings = {
        recognised(side, record, reading, local)
        for side, record, local in (
            (pairing.reference, reference, alone[0]),
            (pairing.candidate, candidate, alone[1]),
        )
    }
    if len(roundings) == 1 and None not in roundings:
        floor = alone[0].error.norm + alone[1].error.norm
        words = f"in both runs {roundings.pop()}"
        return Judgement.handed_on(output, floor=floor, inherited=inherited, words=words)
    raise CannotReplay(
        "double precision on either run's own inputs is far from what it recorded, so the re-run is not"
        " faithful (aliasing, randomness or settings that were not recorded)"
    )


def _words(
    alone: tuple[Local, Local],
    side: Side,
    record: TensorRecord,
    reading: Reading,
    wrong: int,
    rounding: Rounding | None,
) -> str:
    name, other = ("candidate", "reference") if wrong else ("reference", "candidate")
    bad, good = alone[wrong], alone[1 - wrong]
    text = (
        f"re-run alone in double precision on its own inputs, the {name} is off by rel"
        f" {bad.relative:.2g}, the {other} by {good.relative:.2g}"
    )
    if side.unit(record) > SINGLE:
        text += f"; {bad.misrounded:.2%} of its elements are misrounded, {good.misrounded:.2%} of the {other}'s"
    elif record.dtype == "float32" and math.isfinite(bad.error.norm):
        shares = ulp_shares(
            side.actual(record), side.truth(record, reading), torch.float32, ULP_LIMITS
        )
        text += f"; {shares[0]:.0%} of its elements are off by more than 1 ulp, {shares[1]:.0%} by more than 32"
    return f"{text}; {rounding}" if rounding else text


def fault(
    output: Measured,
    excess: float,
    words: str,
    *,
    kind: Kind = Kind.FAULT,
    rounding: Rounding | None = None,
) -> Judgement:
    """A judgement whose margin is the local error over what a sound kernel may be off."""
    difference = output.difference if math.isfinite(output.difference) else 1.0
    tolerance = difference / excess if 0 < excess < math.inf else 0.0
    return Judgement(
        tolerance,
        tolerance,
        beyond_floor=True,
        unexplained=True,
        local=True,
        kind=kind,
        rounding=rounding,
        words=words,
    )


def moved(
    pairing: Pairing, reference: TensorRecord, candidate: TensorRecord, output: Measured
) -> Judgement | None:
    """Data movement is exact: what comes out is, bit for bit, what the operator makes of its input."""
    exact = [
        side.moves_exactly(record)
        for side, record in ((pairing.reference, reference), (pairing.candidate, candidate))
    ]
    if all(exact):
        if pairing.settings_replaced:
            return None
        return Judgement.follows(differs=output.distance > 0)
    if exact.count(True) != 1:
        return None
    own = pairing.as_called
    if exact[0] and own is not None and own.moves_exactly(candidate):
        return fault(output, math.inf, FOLLOWS_OWN, kind=Kind.SETUP)
    name = "candidate" if exact[0] else "reference"
    words = f"the operator only moves data, and the {name}'s output is not its input moved"
    return fault(output, math.inf, words)
