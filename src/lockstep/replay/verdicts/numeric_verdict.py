"""The verdict on numbers: local errors of both runs, what is inherited, and in words."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from lockstep.core.finding import Kind
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.core.text import times
from lockstep.judge.protocol import Judgement, Rounding
from lockstep.judge.tolerances import (
    AMPLIFIED,
    FOLLOWS_SETTING,
    ROUNDS_MORE_OFTEN,
    SINGLE,
    ULP_LIMITS,
)
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.alone import Alone
from lockstep.replay.calls.recorded_tensors import widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rounded_inside import rounded_inside
from lockstep.replay.error_bounds.distance import error_of, size_of, ulp_shares
from lockstep.replay.error_bounds.margin import Local
from lockstep.replay.verdicts.lower_precision import recognised
from lockstep.replay.verdicts.pairing import Pairing
from lockstep.replay.verdicts.which_run import (
    FOLLOWS_OWN,
    RUNS,
    both_alone,
    explained,
    fault,
    wrong_of,
)

_NEITHER = (
    "double precision on either run's own inputs is far from what it recorded, so the re-run is not"
    " faithful (aliasing, randomness or settings that were not recorded)"
)


def numeric(
    pairing: Pairing, reference: TensorRecord, candidate: TensorRecord, output: Measured
) -> Judgement:
    """The verdict on numbers that two aligned calls gave.

    Raises CannotReplay if a call cannot be run again, or running them again is not faithful to them.
    """
    held = _held(pairing, reference, candidate)
    if pairing.as_called is not None:
        found = _setting_shows(replace(held[1], side=pairing.as_called), held[1], output)
        if found is not None:
            return found
    alone = both_alone(*_known_to_each_other(*held))
    inherited = error_of(held[1].truth, held[0].truth).norm  # were both operators exact
    sound = alone[0].sound, alone[1].sound
    if not any(sound):
        both = _recognised(held[0], alone[0]), _recognised(held[1], alone[1])
        if both[0] is not None and both[0] == both[1]:
            floor = alone[0].error.norm + alone[1].error.norm
            words = f"in both runs {both[0]}"
            return Judgement.handed_on(output, floor=floor, inherited=inherited, words=words)
        sound = _known_exactly(both[0]), _known_exactly(both[1])
    wrong = wrong_of(sound, _NEITHER)
    if wrong is None:
        return _sound(alone, inherited, pairing, output)
    rounding = _recognised(held[wrong], alone[wrong])
    lower = rounding or (held[wrong].unit > SINGLE and alone[0].excess <= ROUNDS_MORE_OFTEN)
    kind = Kind.MORE_ACCURATE if wrong == 0 and lower else Kind.FAULT
    words = _words(alone, held[wrong], wrong, rounding)
    found = fault(output, alone[wrong].excess, words, kind=kind, rounding=rounding)
    one_alone = kind is Kind.FAULT and alone[1 - wrong].sound
    return replace(found, wrong_run=RUNS[wrong]) if one_alone else found


def _held(
    pairing: Pairing, reference: TensorRecord, candidate: TensorRecord
) -> tuple[Alone, Alone]:
    """Both results, read as one of the two is nearest to double precision."""
    left, right = pairing.reference, pairing.candidate
    if max(left.unit(reference), right.unit(candidate)) < SINGLE:
        raise CannotReplay("it was computed in double precision itself")
    first, others = left.readings(reference), right.readings(candidate)
    ways = first if len(first) == len(others) == 1 else list(dict.fromkeys([*first, *others]))
    read = [(Alone(left, reference, way), Alone(right, candidate, way)) for way in ways]
    return read[0] if len(read) == 1 else min(read, key=_nearest)


def _nearest(held: tuple[Alone, Alone]) -> float:
    return min(one.distance for one in held)


def _known_to_each_other(left: Alone, right: Alone) -> tuple[Alone, Alone]:
    """Where they compute in one dtype, each knows how far the other usually is off."""
    if left.unit != right.unit:
        return left, right
    usual = left.relative_errors(), right.relative_errors()
    return replace(left, usual=usual[1]), replace(right, usual=usual[0])


def _setting_shows(own: Alone, replaced: Alone, output: Measured) -> Judgement | None:
    """Whether the candidate's result shows that it was called with another setting, and nothing but that.

    However small the effect: what was recorded follows the candidate's own argument, and not the
    reference's. What is further from double precision than that argument explains is a fault beside it.
    """
    actual, expected = replaced.actual, replaced.truth
    off = error_of(actual, expected).norm
    off_own = error_of(actual, own.truth).norm
    limit = max(FOLLOWS_SETTING * off_own, replaced.unit * size_of(expected).norm)
    if not off > limit:
        return None
    excess = off / limit if limit > 0 else math.inf
    beside = own.local()
    if beside.sound:
        return fault(output, excess, FOLLOWS_OWN, kind=Kind.SETUP)
    words = f"called with its own settings, the candidate is off by rel {beside.relative:.2g} all the same"
    return fault(output, beside.excess, words)


def _sound(
    alone: tuple[Local, Local], inherited: float, pairing: Pairing, output: Measured
) -> Judgement:
    """Both are sound by themselves; whether the operator is ill-conditioned besides."""
    scale = output.norm if output.norm > 0 else 1.0
    beyond = inherited > alone[0].tolerance + alone[1].tolerance
    if beyond and pairing.is_set_otherwise():
        excess = inherited / (alone[0].tolerance + alone[1].tolerance)
        return fault(output, excess, FOLLOWS_OWN, kind=Kind.SETUP)
    kappa = _condition(inherited / scale, pairing) if beyond else 0.0
    if not kappa > AMPLIFIED:
        return explained(output, alone, inherited)
    words = f"ill-conditioned here: the operator amplifies differences {times(kappa)}"
    return explained(output, alone, inherited, kind=Kind.AMPLIFIED, words=words)


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


def _known_exactly(rounding: Rounding | None) -> bool:
    """Whether a result is what its operator gives that rounds inside, to the last bit but for its own noise."""
    return rounding is not None and rounding.rounded == "inside"


def _recognised(held: Alone, local: Local) -> Rounding | None:
    """The rounding that explains what a result is off: inside of the operator, or of what enters or leaves it."""
    return rounded_inside(held) or recognised(held, local)


def _words(alone: tuple[Local, Local], held: Alone, wrong: int, rounding: Rounding | None) -> str:
    name, other = RUNS[wrong], RUNS[1 - wrong]
    bad, good = alone[wrong], alone[1 - wrong]
    text = (
        f"re-run alone in double precision on its own inputs, the {name} is off by rel"
        f" {bad.relative:.2g}, the {other} by {good.relative:.2g}"
    )
    if held.unit > SINGLE:
        text += f"; {bad.misrounded:.2%} of its elements are misrounded, {good.misrounded:.2%} of the {other}'s"
        one_sided = bad.bias > bad.allowed_bias
        text += f"; {replace(bad, misrounded=0.0).words_on_rounding}" if one_sided else ""
    elif held.record.dtype == "float32" and math.isfinite(bad.error.norm):
        shares = ulp_shares(held.actual, held.truth, torch.float32, ULP_LIMITS)
        text += f"; {shares[0]:.0%} of its elements are off by more than 1 ulp, {shares[1]:.0%} by more than 32"
    return f"{text}; {rounding}" if rounding else text
