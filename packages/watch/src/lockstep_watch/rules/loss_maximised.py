"""A cross entropy that the training makes larger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from lockstep.recordings import Call, CallKind, Role
from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.scores import OF_CLASSES, OF_TWO_CLASSES, calls_named

_LOSSES = "loss-maximised"
_NEWEST = 5


def loss_maximised(step: ObservedStep, *, steps: int = 10) -> Iterator[Hit]:
    """The training makes its cross entropy larger, and it is worse than guessing by now.

    Formula: the gradient that comes back to every cross entropy is negative (positive where the optimizer
    maximises), and the median of its last five means is above that of its first five and above `ln C`, the cost of
    a guess among C classes. Not counted: a term that is maximised beside others or in turns, as of an adversary.

    Usual cause: a minus in front of the loss, or a log-likelihood's minus twice, `maximize=True`.

    Cure: `loss.backward()` of the cross entropy itself, with an optimizer that minimises.

    Source: PyTorch's documentation of torch.optim (`maximize`) and `CrossEntropyLoss`; Cover and Thomas, Elements
    of Information Theory, theorem 2.6.4.
    """
    losses = list(_losses(step))
    signs = {sign for _, sign, _ in losses}
    row = step.memory.in_a_row(_LOSSES, "", signs == {-1.0})
    if not losses:
        return
    call, _, classes = losses[0]
    value = call.with_role(Role.OUTPUT)[0].statistics
    if value is None or not math.isfinite(value.mean):
        return
    step.memory.remember(_LOSSES, value.mean)
    means = step.memory.before(_LOSSES)
    began, now = median(means[:_NEWEST]), median(means[-_NEWEST:])
    limit = math.log(classes)
    if row >= steps and now > max(began, limit):
        words = (
            f"{call.site.op} is made larger: {now:.4g}, from {began:.4g} at the start; to guess among"
            f" {classes} classes costs {limit:.4g}"
        )
        yield step.hit("loss", words, value=now, limit=limit, call=call)


def _losses(step: ObservedStep) -> Iterator[tuple[Call, float, int]]:
    """Cross entropies that a gradient comes back to: the call, the sign of what is done to it, how many classes."""
    optimizers = step.calls_of(CallKind.OPTIMIZER)
    turned = bool(optimizers) and all(one.arguments.get("maximize") is True for one in optimizers)
    for call in calls_named(step, *OF_CLASSES, *OF_TWO_CLASSES):
        gradients, shape = call.with_role(Role.GRAD_OUTPUT), call.with_role(Role.INPUT)[0].shape
        numbers = gradients[0].statistics if gradients else None
        summed = "sum" in [value for name, value in call.arguments.items() if "reduction" in name]
        if numbers is None or summed or not shape or not call.with_role(Role.OUTPUT):
            continue
        low, high = (
            (-numbers.maximum, -numbers.minimum) if turned else (numbers.minimum, numbers.maximum)
        )
        sign = 1.0 if low >= 0.0 else -1.0 if high <= 0.0 else 0.0
        classes = shape[min(1, len(shape) - 1)] if _has_classes(call) else 2
        if classes > 1:
            yield call, sign, classes


def _has_classes(call: Call) -> bool:
    return "binary" not in call.site.op.lower() and "bce" not in call.site.op.lower()
