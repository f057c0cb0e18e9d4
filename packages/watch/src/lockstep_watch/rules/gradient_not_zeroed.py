"""Gradients that still hold those of the step before."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import CallKind, Role, TensorRecord, unit_roundoff
from lockstep_watch.observed import Hit, ObservedStep

_LAST = "gradient-not-zeroed"
_LIKE = 1e-3
_LOOKED_AT = 8
_AT_LEAST = 2


def gradient_not_zeroed(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """The gradient of a step is added to that of the step before, which an optimizer has taken already.

    Formula: `m(g) = m(g') + m(s)` within a thousandth of `|m(g')|` (in few bits, four unit roundoffs), where m is
    the mean over all elements, s the gradient that backward sent, g the one it left and g' the one that the
    optimizer took in the step before; of two to eight parameters. Means below a thousandth of `|g| / n` are
    rounding.

    Usual cause: `zero_grad()` is missing, or is called on another optimizer than the one that steps.

    Cure: call `optimizer.zero_grad()` once for each of your updates.

    Source: PyTorch's documentation of torch.optim ("Taking an optimization step").
    """
    sent = _sent(step)
    left = {
        record.name: record
        for call in reversed(step.calls_of(CallKind.GRADIENT))
        for record in call.with_role(Role.PARAM_GRAD)
    }
    taken = {one.name: one.gradient for one in step.updates if one.gradient is not None}
    looked = [
        name
        for name in sorted(taken)
        if name in left and len(sent.get(name, ())) == 1 and _has_mean(taken[name])
    ][:_LOOKED_AT]
    found = [name for name in looked if _adds(step, name, left[name], sent[name][0])]
    for name in looked:
        step.memory.facts[_LAST, name] = step.number, _mean(taken[name])
    holds = len(found) == len(looked) >= _AT_LEAST
    if step.memory.in_a_row("not zeroed", "", holds) >= steps:
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
    number: int
    before: float | None
    number, before = step.memory.facts.get((_LAST, name), (-2, None))
    if number != step.number - 1 or before is None or left.content.id == sent.content.id:
        return False
    whole, part = _mean(left), _mean(sent)
    if whole is None or part is None or not before:
        return False
    like = max(_LIKE, 4.0 * unit_roundoff(left.dtype))
    return bool(abs(whole - part - before) <= like * abs(before))


def _mean(record: TensorRecord) -> float | None:
    numbers = record.statistics
    if numbers is None or numbers.nan_count or numbers.inf_count:
        return None
    return numbers.mean


def _has_mean(record: TensorRecord) -> bool:
    mean, numbers = _mean(record), record.statistics
    if mean is None or numbers is None:
        return False
    return abs(mean) > _LIKE * numbers.norm / max(1, record.content.numel)
