"""Which other tensor of the run a call takes in one run: a sum over the wrong branch, a gate on the wrong product."""

from __future__ import annotations

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.locate.lone_calls.stretches import is_aligned


def taken_instead(pair: Pair, step: AlignedStep) -> str:
    """Return the call whose result the candidate takes in place of the reference's; "" if that is not proven.

    It is, if both runs make one of the two results, bitwise equal, and each takes what a different call made.
    """
    left, right = pair.reference, pair.candidate
    if left is None or right is None or right.role is not Role.INPUT:
        return ""
    used = step.reference.producer(left.content.id, left.sequence)
    taken = step.candidate.producer(right.content.id, right.sequence)
    if used is None or taken is None:
        return ""
    in_reference, in_candidate = step.of_candidate(taken), step.of_reference(used)
    if in_reference is None or used is in_reference.reference:
        return ""  # made by a call of one run alone, which is told as such, or by the same one
    around = left.site.module
    by_candidate = f"the candidate takes {_result(in_reference.reference, around)} here"
    by_reference = f"the reference takes {_result(used, around, 'that')}"
    if _makes(in_reference.reference, right):
        return f"{by_candidate}, which is bitwise equal in both runs, where {by_reference}"
    makes = in_candidate is not None and _makes(in_candidate.candidate, left)
    if makes and is_aligned(in_reference.calls):
        return f"{by_candidate}, where {by_reference}, which is bitwise equal in both runs"
    return ""


def _makes(call: Call, record: TensorRecord) -> bool:
    return record.digest is not None and any(
        one.digest == record.digest for one in call.with_role(Role.OUTPUT)
    )


def _result(call: Call, around: str, word: str = "the result") -> str:
    """A call's result in words; what arrives from outside is the result of nothing."""
    named = f"{call.site.op} #{call.site.call}"
    if call.kind is CallKind.DATA:
        return f"the {named}"
    module = call.site.module
    within = "" if module == around else f" of {module or 'the model'}"
    return f"{word} of {named}{within}"
