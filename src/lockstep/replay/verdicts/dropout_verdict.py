"""The verdict on dropout, which draws: what is kept must be scaled, and as many dropped as should be."""

from __future__ import annotations

import math

import torch

from lockstep.core.finding import Kind
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, is_gradient
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.decisions import Dropped, dropped
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.side import Side
from lockstep.replay.error_bounds.distance import rounded
from lockstep.replay.verdicts.pairing import Pairing
from lockstep.replay.verdicts.which_run import RUNS, fault, wrong_of


def dropout(
    pairing: Pairing, reference: TensorRecord, candidate: TensorRecord, output: Measured
) -> Judgement:
    """The verdict on an output or a gradient of dropout. Raises CannotReplay if neither run does what dropout does."""
    sides, records = (pairing.reference, pairing.candidate), (reference, candidate)
    done = [
        dropped(side.rerun, side.unit(record)) for side, record in zip(sides, records, strict=True)
    ]
    if is_gradient(output):
        return _gradient(sides, records, done, output)
    wrong = wrong_of((done[0].sound, done[1].sound), "neither run does what dropout does")
    if wrong is not None:
        return fault(output, math.inf, f"in the {RUNS[wrong]} {done[wrong].words}")
    both = done[0].telling & done[1].telling
    other = int(((done[0].kept != done[1].kept) & both).sum())
    if other:
        words = f"{other} of {int(both.sum())} elements are dropped in one run only; kept ones are exact"
        return Judgement.wrong(Kind.RANDOM, words)
    return Judgement.follows()


def _gradient(
    sides: tuple[Side, Side],
    records: tuple[TensorRecord, TensorRecord],
    done: list[Dropped],
    output: Measured,
) -> Judgement:
    """The gradient of dropout is the incoming one, with the same elements dropped."""
    excess = [
        _gradient_excess(side, record, one)
        for side, record, one in zip(sides, records, done, strict=True)
    ]
    neither = "neither run sends back what dropout does"
    wrong = wrong_of((excess[0] <= 1.0, excess[1] <= 1.0), neither)
    if wrong is None:
        return Judgement.follows(differs=output.distance > 0)
    words = (
        f"in the {RUNS[wrong]} the gradient is not the incoming one with the same elements dropped"
    )
    return fault(output, excess[wrong], words)


def _gradient_excess(side: Side, record: TensorRecord, one: Dropped) -> float:
    """How many times more than allowed the element is off that is furthest off.

    What arrives infinite at a dropped element has no product with zero: kernels give NaN or zero there.
    """
    incoming = _incoming(side, record)
    recorded = side.rerun.load(record)
    actual, truth = recorded.double(), incoming * one.factor * one.kept
    limit = 4.0 * side.unit(record) * truth.abs() + torch.finfo(recorded.dtype).tiny
    nearest = rounded(truth, recorded.dtype)
    right = (actual == nearest) | (actual.isnan() & nearest.isnan())
    right |= ~one.kept & ~incoming.isfinite() & (actual == 0)
    excess = ((actual - truth).abs() / limit).nan_to_num(math.inf, math.inf).masked_fill(right, 0.0)
    (entered,) = side.call.with_role(Role.INPUT)
    held = excess[one.telling & side.rerun.load(entered).isfinite()]
    if not held.numel():
        raise CannotReplay("of no element it can be told whether it was dropped")
    return float(held.max())


def _incoming(side: Side, record: TensorRecord) -> torch.Tensor:
    """The gradient that enters, in double precision."""
    arrived = [
        other
        for other in side.call.with_role(Role.GRAD_OUTPUT)
        if other.occurrence == record.occurrence
    ]
    if len(arrived) != 1 or arrived[0].shape != record.shape:
        raise CannotReplay("the gradient that enters was not recorded")
    return side.rerun.load(arrived[0]).double()
