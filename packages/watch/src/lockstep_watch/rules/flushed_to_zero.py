"""Numbers that a conversion to a narrower dtype turns into zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.recordings import (
    Call,
    Role,
    TensorRecord,
    canonical_name,
    is_floating,
    smallest_positive,
    unit_roundoff,
)
from lockstep_watch.observed import Hit, ObservedStep, norm_of

_CONVERSIONS = {"to", "type", "typeas", "half", "bfloat16", "float", "double"}


def flushed_to_zero(
    step: ObservedStep, *, share: float = 0.5, weight: float = 0.01
) -> Iterator[Hit]:
    """A visible conversion to float16, bfloat16 or float8 turns most of a tensor into zero, forward or backward.

    Formula: `(zeros after - zeros before) / non-zeros before >= share`, and the lost part counts: `sqrt(lost) *
    half of the smallest positive number >= weight * norm before`. Not counted: the tail of a softmax. Conversions
    by autocast inside of operators are not seen.

    Usual cause: gradients in float16 without a loss scale, or with one that has fallen; float8 without a scale.

    Cure: a `GradScaler`, a larger scale, bfloat16, or that operator in float32.

    Source: Micikevicius et al., Mixed Precision Training (ICLR 2018), section 3.2.
    """
    for call in step.operators:
        if canonical_name(call.site.op) not in _CONVERSIONS:
            continue
        ways = (Role.INPUT, Role.OUTPUT), (Role.GRAD_OUTPUT, Role.GRAD_INPUT)
        for into, out in ways:
            before, after = call.with_role(into)[:1], call.with_role(out)[:1]
            if before and after and _narrows(before[0], after[0]):
                yield from _found(step, call, before[0], after[0], share, weight)


def _narrows(before: TensorRecord, after: TensorRecord) -> bool:
    both = is_floating(before.dtype) and is_floating(after.dtype)
    narrower = unit_roundoff(before.dtype) < unit_roundoff(after.dtype)
    return both and narrower and before.shape == after.shape


def _found(
    step: ObservedStep,
    call: Call,
    before: TensorRecord,
    after: TensorRecord,
    share: float,
    weight: float,
) -> Iterator[Hit]:
    norm, smallest = norm_of(before), smallest_positive(after.dtype)
    if before.statistics is None or after.statistics is None or not norm or smallest is None:
        return
    had = before.content.numel - before.statistics.zero_count
    lost = after.statistics.zero_count - before.statistics.zero_count
    if lost >= share * had and math.sqrt(lost) * smallest / 2.0 >= weight * norm:
        words = f"{lost / had:.1%} of {after.role.value} {after.name} is flushed to zero by {after.dtype}"
        subject = f"{call.site}: {after.role.value} {after.name}"
        yield step.hit(subject, words, value=lost / had, limit=share, call=call)
