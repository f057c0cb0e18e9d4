"""Gradients that still hold those of the step before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.core.records import Sketch, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.wings.watch.observed import Hit, ObservedStep

_LAST = "gradient-not-zeroed"
_LIKE = 1e-3
_LOOKED_AT = 8


def gradient_not_zeroed(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """The gradient of a step is added to that of the step before, which an optimizer has taken already.

    Formula: g = g' + s within a thousandth of |g'|, where s is what backward sent, g what it left and g' what the
    optimizer took in the step before, in so many watched steps in a row. Sketches are linear, so it is asked of them;
    of eight parameters at most, of which backward sends one part in the step.

    Usual cause: `zero_grad()` is missing, or is called on another optimizer than the one that steps.

    Cure: call `optimizer.zero_grad()` once an update.

    Source: PyTorch's documentation of torch.optim ("Taking an optimization step").
    """
    sent = _sent(step)
    left = {
        record.name: record
        for call in reversed(step.calls_of(CallKind.GRADIENT))
        for record in call.with_role(Role.PARAM_GRAD)
    }
    taken = {one.name: one.gradient for one in step.updates if one.gradient is not None}
    looked = [name for name in sorted(taken) if name in left and len(sent.get(name, ())) == 1]
    found = [name for name in looked[:_LOOKED_AT] if _adds(step, name, left[name], sent[name][0])]
    for name in looked[:_LOOKED_AT]:
        step.memory.facts[_LAST, name] = step.number, taken[name].content.sketch
    if step.memory.in_a_row("not zeroed", "", bool(found)) >= steps:
        words = f"the gradient of {found[0]} still holds that of the step before: it was not set to zero"
        yield step.hit("gradients", words, call=step.gradients[found[0]][0])


def _sent(step: ObservedStep) -> dict[str, list[TensorRecord]]:
    kind = CallKind.OPERATOR if step.operators else CallKind.MODULE
    found: dict[str, list[TensorRecord]] = {}
    for call in step.calls_of(kind):
        for record in call.with_role(Role.PARAM_GRAD):
            found.setdefault(record.name, []).append(record)
    return found


def _adds(step: ObservedStep, name: str, left: TensorRecord, sent: TensorRecord) -> bool:
    number, before = step.memory.facts.get((_LAST, name), (-2, None))
    if number != step.number - 1 or before is None or left.content.id == sent.content.id:
        return False
    whole, part = left.content.sketch, sent.content.sketch
    return whole is not None and part is not None and _is_sum(whole, part, before)


def _is_sum(whole: Sketch, part: Sketch, before: Sketch) -> bool:
    size = float(np.linalg.norm(before))
    return size > 0.0 and float(np.linalg.norm(whole - part - before)) <= _LIKE * size
