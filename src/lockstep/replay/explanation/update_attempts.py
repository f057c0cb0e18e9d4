"""The update of one parameter, made again otherwise: what stands for a call's re-runs where the call is an update."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.calls.held_results import UPDATED
from lockstep.replay.calls.machine import HERE
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.outcome import Outcome
from lockstep.replay.questions import Unexplained

_numbers = itertools.count(1)


def update_of(question: Unexplained) -> Call | None:
    """The update to make again: of what entered the candidate, with the reference's settings."""
    left, right = question.reference_call, question.candidate_call
    if left is None or left.kind is not CallKind.OPTIMIZER:
        return None
    if question.reference.role not in UPDATED:
        return None  # what enters the update is no result of it
    same = right is not None and right.kind is CallKind.OPTIMIZER and right.site.op == left.site.op
    call = replace(right, arguments=left.arguments) if same and right is not None else left
    return _with_state(call)


def _with_state(call: Call) -> Call:
    """An update with the zeros that its optimizer begins with, where it is the first."""
    if call.with_role(Role.STATE):
        return call
    begun = [
        _changed(replace(record, role=Role.STATE), torch.zeros_like)
        for record in call.with_role(Role.STATE_AFTER)
    ]
    return replace(call, records=(*call.records, *begun))


def made(call: Call) -> dict[str, torch.Tensor] | None:
    """Parameter and states that an update gives; None where it cannot be made again."""
    try:
        return UpdateRerun(call).again(HERE)
    except (CannotReplay, ArithmeticError):
        return None


def exactly(call: Call, record: TensorRecord) -> torch.Tensor | None:
    """One of them in double precision."""
    try:
        return UpdateRerun(call).truth(record)
    except (CannotReplay, ArithmeticError):
        return None


def taken(results: Mapping[str, torch.Tensor], record: TensorRecord) -> torch.Tensor | None:
    """Return an update's result for the parameter or state of a record."""
    found = UpdateRerun.named(results, record)
    if found is None or tuple(found.shape) != record.shape or found.dtype.is_complex:
        return None
    return found.double()


def beside(
    results: Mapping[str, torch.Tensor], *, but: frozenset[str] = frozenset()
) -> Callable[[Outcome], torch.Tensor | None]:
    """Return an update's prediction for each of its results, except states that were made up to get there."""

    def found(outcome: Outcome) -> torch.Tensor | None:
        key = UpdateRerun.key_of(outcome.record)
        return None if key in but else taken(results, outcome.record)

    return found


def with_argument(call: Call, name: str, value: Any) -> Call:
    """The same update with another hyper-parameter."""
    return replace(call, arguments={**call.arguments, name: value})


def with_tensor(
    call: Call, role: Role, key: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Call:
    """The same update with the gradient (key "") or a state of that name changed."""
    records = tuple(
        _changed(record, change)
        if record.role is role and key in ("", UpdateRerun.key_of(record))
        else record
        for record in call.records
    )
    return replace(call, records=records)


def _changed(record: TensorRecord, change: Callable[[torch.Tensor], torch.Tensor]) -> TensorRecord:
    def loaded() -> np.ndarray[Any, Any]:
        changed = change(load(record))
        # bfloat16 is unknown to NumPy; recordings give it widened too.
        return changed.float().numpy() if changed.dtype is torch.bfloat16 else changed.numpy()

    content = replace(
        record.content, id=-next(_numbers), digest=None, statistics=None, loader=loaded
    )
    return replace(record, content=content)
