"""Rule: a batch in which nothing differs."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Call, CallKind, Role, TensorRecord
from lockstep_watch.observed import Hit, ObservedStep


def batch_constant(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """The model's input holds the same number everywhere.

    Formula: `minimum = maximum` of the first tensor that each outermost module gets from outside, of two elements
    or more, while nothing else from outside differs except targets of a loss.

    Usual cause: a reader that gives zeros for files that it cannot read, pixels that are scaled twice and rounded, a
    buffer that is never filled.

    Cure: look at a sample as your loader gives it; `lockstep record` and `lockstep report` show the batch.

    Source: MindInsight's method for accuracy problems ("look at the input data").
    """
    given = list(_given(step))
    constant = [one for one in given if _is_constant(one)]
    holds = bool(given) and len(constant) == len(given) and not _has_other_data(step)
    if step.memory.in_a_row("constant batch", "", holds) >= steps:
        value = constant[0].statistics.maximum if constant[0].statistics else 0.0
        words = f"{constant[0].name} of shape {constant[0].shape} holds {value:g} everywhere"
        yield step.hit("batch", words, value=value)


def _has_other_data(step: ObservedStep) -> bool:
    """Whether something from outside that is not constant goes into more than a loss."""
    outside = [one for call in step.calls_of(CallKind.DATA) for one in call.with_role(Role.OUTPUT)]
    differing = {one.content.id for one in outside if not _is_constant(one)}
    return any(
        record.content.id in differing
        for call in step.calls
        if call.kind in (CallKind.OPERATOR, CallKind.MODULE) and not _is_loss(call)
        for record in call.with_role(Role.INPUT)
    )


def _is_loss(call: Call) -> bool:
    name = call.site.op.lower()
    return "loss" in name or "entropy" in name


def _given(step: ObservedStep) -> Iterator[TensorRecord]:
    """The first tensor that comes from outside, of each call of an outermost module."""
    outside = {
        one.content.id
        for call in step.calls_of(CallKind.DATA)
        for one in call.with_role(Role.OUTPUT)
    }
    for call in step.calls_of(CallKind.MODULE):
        first = call.with_role(Role.INPUT)[:1]
        is_outermost = call.parent < 0 and first
        if is_outermost and first[0].content.id in outside and first[0].content.numel > 1:
            yield first[0]


def _is_constant(record: TensorRecord) -> bool:
    numbers = record.statistics
    return numbers is not None and numbers.minimum == numbers.maximum and not numbers.nan_count
