"""How much of a gradient an activation lets through, told from its results alone."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Call, CallKind, Role, TensorRecord, canonical_name
from lockstep_watch.observed import ObservedStep

_UNDONE_BY = {"log", "log2", "log10", "log1p", "logit", "binarycrossentropy", "bceloss"}
"""A logarithm undoes the slope of what it is taken of: a sigmoid in front of it may be certain."""


def activations(step: ObservedStep, operator: str) -> Iterator[tuple[Call, TensorRecord]]:
    """Results of such calls that a gradient comes back through and that go into no logarithm."""
    undone = {
        record.content.id
        for call in step.calls
        if call.kind in (CallKind.OPERATOR, CallKind.MODULE)
        and canonical_name(call.site.op) in _UNDONE_BY
        for record in call.with_role(Role.INPUT)
    }
    for call, record in step.outputs(operator):
        if call.with_role(Role.GRAD_OUTPUT) and record.content.id not in undone:
            yield call, record


def mean_and_mean_square(record: TensorRecord) -> tuple[float, float] | None:
    """Mean and mean square over all elements; None where one is not known or not finite, or there is but one."""
    numbers, count = record.statistics, record.content.numel
    if numbers is None or numbers.nan_count or numbers.inf_count or count < 2:
        return None
    return numbers.mean, numbers.norm**2 / count
