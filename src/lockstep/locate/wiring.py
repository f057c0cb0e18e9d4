"""Which other tensor of the run a call takes in one run: a sum over the wrong branch, a gate on the wrong product."""

from __future__ import annotations

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role


def taken_instead(pair: Pair, step: AlignedStep) -> str:
    """Return which call's result the candidate takes in place of another one's, or "" where that is not proven.

    It is, if both runs make that result, bitwise equal, and the reference takes what a different call made.
    """
    left, right = pair.reference, pair.candidate
    if left is None or right is None or right.role is not Role.INPUT:
        return ""
    used = step.reference.producer(left.content.id, left.sequence)
    taken = step.candidate.producer(right.content.id, right.sequence)
    item = step.of_candidate(taken) if taken is not None else None
    if used is None or item is None or used is item.reference or not _makes(item.reference, right):
        return ""
    around = left.site.module
    return (
        f"the candidate takes the result of {_named(item.reference, around)} here, which is bitwise equal in both runs,"
        f" where the reference takes that of {_named(used, around)}"
    )


def _makes(call: Call, record: TensorRecord) -> bool:
    return record.digest is not None and any(
        one.digest == record.digest for one in call.with_role(Role.OUTPUT)
    )


def _named(call: Call, around: str) -> str:
    module = call.site.module
    within = "" if module == around else f" of {module or 'the model'}"
    return f"{call.site.op} #{call.site.call}{within}"
