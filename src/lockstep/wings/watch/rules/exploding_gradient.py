"""Gradients that are far larger than what they change."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.wings.watch.observed import Hit, ObservedStep, norm_of


def exploding_gradient(step: ObservedStep, *, limit: float = 1e4) -> Iterator[Hit]:
    """A weight's gradient is larger than the weight by orders of magnitude.

    Formula: |g| / |w| > limit in Euclidean norms, for parameters of two axes or more that are not zero, without a
    scaler's factor. As a ratio it does not depend on how large the model is, and less on how the loss is summed.

    Usual cause: a recurrent net over long sequences, weights that start too large, a learning rate that has thrown
    the weights off, a loss that is summed rather than averaged.

    Cure: clip gradients by norm, a smaller learning rate or a warm-up, another initialisation.

    Source: MindInsight's debugger, watchpoint "gradient exploding"; the limit is Lockstep's: sound trainings of its
    tests stay below 100.
    """
    for update in step.updates:
        call, record = step.gradients.get(update.name, (None, None))
        if record is None or update.before is None or not update.is_weight:
            continue
        gradient, weight = norm_of(record), norm_of(update.before)
        if gradient is None or not weight:
            continue
        value = gradient / step.gradient_scale / weight
        if value > limit:
            words = f"the gradient of {update.name} is {value:.3g} times as large as the weight, above {limit:g}"
            yield step.hit(update.name, words, value=value, limit=limit, call=call)
