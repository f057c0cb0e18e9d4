"""The verdict on what an optimizer made of a parameter or a state, each update replayed from what entered it."""

from __future__ import annotations

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import TensorRecord
from lockstep.judge.protocol import Judgement
from lockstep.judge.tolerances import SINGLE
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.optimizer_update import UpdateRerun, local_of
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.error_bounds.distance import error_of, together
from lockstep.replay.error_bounds.margin import Local
from lockstep.replay.verdicts.which_run import RUNS, explained, fault, wrong_of


def updated(
    updates: tuple[UpdateRerun, UpdateRerun],
    reference: TensorRecord,
    candidate: TensorRecord,
    output: Measured,
) -> Judgement:
    """The verdict on a parameter or a state after an update.

    Raises CannotReplay if torch refuses, or neither update is what its class computes.
    """
    alone, inherited = _replayed(*updates, reference, candidate)
    neither = "neither update is what its class computes in double precision"
    wrong = wrong_of((alone[0].sound, alone[1].sound), neither)
    if wrong is None:
        return explained(output, alone, inherited)
    share = updates[wrong].share_of_update(alone[wrong].error.norm)
    words = (
        f"replayed in double precision from its own parameter, gradient, state and settings, the {RUNS[wrong]}'s"
        f" update is off by {share:.2g} of its size"
    )
    return fault(output, alone[wrong].excess, words)


def _replayed(
    left: UpdateRerun, right: UpdateRerun, reference: TensorRecord, candidate: TensorRecord
) -> tuple[tuple[Local, Local], float]:
    """Local errors of both runs, and how far the two would be apart if both updates were exact."""
    units = unit_roundoff(reference.dtype), unit_roundoff(candidate.dtype)
    if min(units) < SINGLE:
        raise CannotReplay("it was computed in double precision itself")
    chunks = list(left.chunks())
    if chunks != list(right.chunks()):
        raise CannotReplay("the two optimizers keep other states")
    of_left, of_right, apart = [], [], []
    for chunk in chunks if reference.content.numel > 1 else chunks[:1]:
        one, two = left.part(reference, chunk), right.part(candidate, chunk)
        apart.append(error_of(two[0], one[0]))
        of_left.append(one[1])
        of_right.append(two[1])
    return (local_of(of_left, units[0]), local_of(of_right, units[1])), together(apart).norm
