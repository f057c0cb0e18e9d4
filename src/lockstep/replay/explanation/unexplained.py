"""The question what a candidate computes instead. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.core.records import Call, TensorRecord


@dataclass(frozen=True, slots=True)
class Unexplained:
    """One result at which two runs part though their inputs agree.

    Parameters
    ----------
    reference, candidate
        The result in both runs, with whole tensors.
    reference_call, candidate_call
        The operators or updates that gave it; None where none was recorded.
    others
        Tensors of the reference, of the same shape, from this step and the one before.
    earlier
        Calls of the candidate that stand for the same one earlier: at this place in the step before, and of the same
        operator in this step.
    updated
        Names of parameters that the candidate's optimizers updated between the step before and this one.
    seconds
        How long the answer may take.
    """

    reference: TensorRecord
    candidate: TensorRecord
    reference_call: Call | None
    candidate_call: Call | None
    others: tuple[TensorRecord, ...] = ()
    earlier: tuple[Call, ...] = ()
    updated: frozenset[str] = frozenset()
    seconds: float = 60.0
