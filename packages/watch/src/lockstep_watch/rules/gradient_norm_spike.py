"""One step with far larger gradients than those before."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.usual import usual

_START = ("gradient-norm-spike", "largest of the first ones")


def gradient_norm_spike(
    step: ObservedStep, *, factor: float = 20.0, window: int = 10, ratio: float = 4.0
) -> Iterator[Hit]:
    """The norm of all gradients is far above that of the steps before.

    Formula: `n > factor * m`, `n > 2 * maximum` and `log(n / m) > ratio * s'`, where m is the median of the last
    `window` watched steps and s' the spread of their logarithms (as for `loss-spike`); and n is above the largest
    of the first ones. It is taken before clipping and without a scaler's factor.

    Usual cause: a bad batch (an outlier, wrong labels), too large a learning rate, a recurrent net.

    Cure: look at that step's batch; clip your gradients by norm.

    Source: Lockstep's: within sound trainings of its tests a norm stays below 6 times that median.
    """
    norm = step.gradient_norm
    if norm is None or step.is_skipped:
        return
    before = step.memory.before("gradient norm")[-window:]
    if len(before) == window and math.isfinite(norm):
        was = usual(before)
        start = step.memory.facts.setdefault(_START, max(before))
        limit = max(start, max(factor, math.exp(min(700.0, ratio * was.ratio))) * was.median)
        if norm > limit and norm > 2.0 * max(before):
            words = f"the norm of all gradients is {norm:.3g}; over the last {window} watched steps {was.median:.3g}"
            yield step.hit("gradient norm", words, value=norm, limit=limit)
    step.memory.remember("gradient norm", norm)
