"""Gradients that are far larger than what they change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.terminal import times
from lockstep_watch.observed import Hit, ObservedStep, norm_of


def exploding_gradient(step: ObservedStep, *, limit: float = 1e4) -> Iterator[Hit]:
    """A weight's gradient is larger than the weight and its loss account for, by orders of magnitude.

    Formula: `|g| / (|w| max(1, sqrt|L|)) > limit`, for parameters of two axes or more that are not zero; L is the
    step's loss, both without a scaler's factor.

    Usual cause: a recurrent net over long sequences, weights that start too large, too large a learning rate, a
    loss that is summed rather than averaged.

    Cure: clip your gradients by norm, a smaller learning rate, a warm-up or a different initialisation.

    Source: MindInsight's debugger, watchpoint "gradient exploding"; sound trainings of Lockstep's tests stay below
    100.
    """
    unit = (
        math.sqrt(max(1.0, abs(step.loss)))
        if step.loss is not None and math.isfinite(step.loss)
        else 1.0
    )
    for update in step.updates:
        call, record = step.gradients.get(update.name, (None, None))
        if record is None or update.before is None or not update.is_weight:
            continue
        gradient, weight = norm_of(record), norm_of(update.before)
        if gradient is None or not weight:
            continue
        value = gradient / step.gradient_scale / weight / unit
        if value > limit:
            than = "the weight" if unit == 1.0 else "the weight times the root of the loss"
            words = f"the gradient of {update.name} is {times(value)} as large as {than}, above {limit:g}"
            yield step.hit(update.name, words, value=value, limit=limit, call=call)
