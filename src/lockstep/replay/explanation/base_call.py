"""The call that hypotheses change: what entered the candidate, with the reference's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import canonical_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.calls.held_results import BACKWARD, FORWARD, results_of
from lockstep.replay.calls.rebuild import Rebuilt, rebuild
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.questions import Unexplained


@dataclass(frozen=True, slots=True)
class Base:
    """A call that can be run again, beside the reference's own.

    call, rebuilt: The candidate's with the reference's settings; where the two call otherwise, the reference's with the
        gradients that arrived in the candidate.
    reference, own: The reference's call as it was.
    of_candidate: Whether `call` holds the candidate's records.
    gradients: Whether what arrived at the candidate is known, so that its gradients can be foretold.
    """

    call: Call
    rebuilt: Rebuilt
    reference: Call
    own: Rebuilt
    of_candidate: bool
    gradients: bool

    def record_of(self, record: TensorRecord, candidate: TensorRecord) -> TensorRecord:
        """The record of a result in the call that is run again."""
        return candidate if self.of_candidate else record


def base_of(question: Unexplained) -> Base | None:
    """The call to run again; None where the reference's cannot be."""
    left, right = question.reference_call, question.candidate_call
    if left is None or left.kind is not CallKind.OPERATOR:
        return None
    if question.reference.role not in (*FORWARD, *BACKWARD):
        return None  # what enters the call is no result of it
    try:
        built = rebuild(left)
    except CannotReplay:
        return None
    if right is not None and _alike(left, right):
        try:
            return Base(right, rebuild(right).with_settings(built), left, built, True, True)
        except CannotReplay:
            pass
    call, gradients = (left, False) if right is None else _with_gradients_of(left, right)
    return Base(call, built, left, built, False, gradients)


def pairs_of(left: Call, right: Call) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """Every result of one call with the same result of the other, where both are whole."""
    if canonical_name(left.site.op) != canonical_name(right.site.op) and entering(left) != entering(
        right
    ):
        return  # one of several that stand in for the other: its results are not the other's
    theirs = results_of(right)
    for record in results_of(left):
        for other in theirs:
            if _same_result(left, record, right, other):
                if record.content.loader is not None and other.content.loader is not None:
                    yield record, other
                break


def entering(call: Call) -> set[str | None]:
    """Digests of what enters a call."""
    return {record.digest for record in call.with_role(Role.INPUT)}


def _same_result(left: Call, record: TensorRecord, right: Call, other: TensorRecord) -> bool:
    one = (record.role, record.occurrence, record.shape)
    if one != (other.role, other.occurrence, other.shape):
        return False
    if record.role in BACKWARD:
        return _argument(left, record.index) == _argument(right, other.index)
    if left.kind is CallKind.OPTIMIZER:
        return record.name.rsplit("|", 1)[-1] == other.name.rsplit("|", 1)[-1]
    return record.index == other.index


def _argument(call: Call, index: int) -> str:
    found = (one for one in call.with_role(Role.INPUT) if one.index == index)
    return next((one.argument or one.name for one in found), "")


def _with_gradients_of(left: Call, right: Call) -> tuple[Call, bool]:
    """A call with the gradients that arrived at another one, and whether there are such for each of its own."""
    theirs = {(one.index, one.occurrence): one for one in right.with_role(Role.GRAD_OUTPUT)}
    found, complete = [], True
    for record in left.records:
        other = theirs.get((record.index, record.occurrence))
        if record.role is not Role.GRAD_OUTPUT:
            found.append(record)
        elif other is None or other.shape != record.shape or other.dtype != record.dtype:
            complete = False
        else:
            # Numbers of contents are one run's own: those of the other run must not meet them.
            found.append(replace(other, content=replace(other.content, id=-1 - other.content.id)))
    return (replace(left, records=tuple(found)), True) if complete else (left, False)


def _alike(left: Call, right: Call) -> bool:
    """Whether both call one operator with as many tensors."""
    same = canonical_name(left.site.op) == canonical_name(right.site.op)
    counts = {len(call.with_role(Role.INPUT)) for call in (left, right)}
    return (
        same
        and right.kind is CallKind.OPERATOR
        and len(counts) == 1
        and _decided(left) == _decided(right)
    )


def _decided(call: Call) -> list[str | None]:
    """Indices and masks that enter a call: where they differ, the candidate's are what is to be explained."""
    return [
        record.digest for record in call.with_role(Role.INPUT) if unit_roundoff(record.dtype) == 0
    ]
