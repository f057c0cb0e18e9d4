"""The verdict on what an optimizer made of a parameter or a state, each update replayed from what entered it."""

from __future__ import annotations

from lockstep.core.records import TensorRecord
from lockstep.judge.protocol import Judgement
from lockstep.measure.measured_pair import Measured
from lockstep.replay.optimizer_update import UpdateRerun, replayed
from lockstep.replay.two_runs import RUNS, fault, wrong_of


def updated(
    updates: tuple[UpdateRerun, UpdateRerun],
    reference: TensorRecord,
    candidate: TensorRecord,
    output: Measured,
) -> Judgement:
    """The verdict on a parameter or a state after an update.

    Raises
    ------
    CannotReplay
        If torch refuses, or neither update is what its class computes.
    """
    found = replayed(*updates, reference, candidate)
    alone = found.alone
    neither = "neither update is what its class computes in double precision"
    wrong = wrong_of((alone[0].sound, alone[1].sound), neither)
    if wrong is None:
        floor = alone[0].tolerance + alone[1].tolerance
        return Judgement.handed_on(output, floor=floor, inherited=found.inherited)
    share = updates[wrong].share_of_update(alone[wrong].error.norm)
    words = (
        f"replayed in double precision from its own parameter, gradient, state and settings, the {RUNS[wrong]}'s"
        f" update is off by {share:.2g} of its size"
    )
    return fault(output, alone[wrong].excess, words)
