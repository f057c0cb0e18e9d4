"""The verdict on what rounds nothing: decisions (indices, masks, counts) and data that is only moved."""

from __future__ import annotations

import math

from lockstep.core.finding import Kind
from lockstep.core.records import TensorRecord
from lockstep.judge.protocol import Judgement
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.decisions import decided, decision_words
from lockstep.replay.verdicts.pairing import Pairing
from lockstep.replay.verdicts.which_run import FOLLOWS_OWN, RUNS, fault, wrong_of


def decision(pairing: Pairing, reference: TensorRecord, candidate: TensorRecord) -> Judgement:
    """The verdict on whole numbers: each is what the operator gives, or a tie away from it.

    Raises CannotReplay if running it again decides otherwise than either run, or settings may have made the difference.
    """
    left, right = pairing.reference.rerun, pairing.candidate.rerun
    sound = decided(left, reference).valid, decided(right, candidate).valid
    words = decision_words(left, right, reference, candidate)
    wrong = wrong_of(sound, "running it again decides otherwise than either run")
    if wrong is None:
        if pairing.is_set_otherwise():
            return Judgement.wrong(Kind.SETUP, f"{words}; {FOLLOWS_OWN}")
        return Judgement.follows(kind=Kind.DECISION, words=words)
    own = pairing.as_called
    if wrong == 1 and own is not None and decided(own.rerun, candidate).valid:
        return Judgement.wrong(Kind.SETUP, FOLLOWS_OWN)
    blame = f"on its own inputs the {RUNS[wrong]}'s choice is not what the operator gives"
    return Judgement.wrong(Kind.FAULT, f"{words}; {blame}")


def moved(
    pairing: Pairing, reference: TensorRecord, candidate: TensorRecord, output: Measured
) -> Judgement | None:
    """Data movement is exact: what comes out is, bit for bit, what the operator makes of its input.

    None where that tells nothing, as of an operator that converts too.

    Raises CannotReplay if settings may have made the difference.
    """
    exact = (
        pairing.reference.moves_exactly(reference),
        pairing.candidate.moves_exactly(candidate),
    )
    if all(exact):
        if pairing.settings_replaced:
            return None
        if pairing.is_set_otherwise():
            return fault(output, math.inf, FOLLOWS_OWN, kind=Kind.SETUP)
        return Judgement.follows(differs=output.distance > 0)
    if not any(exact):
        return None
    own = pairing.as_called
    if exact[0] and own is not None and own.moves_exactly(candidate):
        return fault(output, math.inf, FOLLOWS_OWN, kind=Kind.SETUP)
    name = RUNS[1] if exact[0] else RUNS[0]
    words = f"the operator only moves data, and the {name}'s output is not its input moved"
    return fault(output, math.inf, words)
