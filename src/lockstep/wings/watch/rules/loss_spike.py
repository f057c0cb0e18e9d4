"""One step with a far larger loss than those before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from lockstep.wings.watch.observed import Hit, ObservedStep


def loss_spike(
    step: ObservedStep, *, factor: float = 12.0, window: int = 10, share: float = 0.5
) -> Iterator[Hit]:
    """The loss is far above that of the steps before.

    Formula: l - m > factor * 1.4826 * median |l_i - m| and l - m > share * |m|, where m is the median of the last
    `window` watched steps, once there are as many; 1.4826 makes the median deviation a standard deviation of normal
    noise (Rousseeuw and Croux, JASA 1993).

    Usual cause: a bad batch (an outlier, wrong labels, padding), a learning rate that is too large, state that was
    lost at a restart.

    Cure: look at that step's batch (`--save-on loss-spike`), clip gradients, warm up longer.

    Source: the factors are Lockstep's.
    """
    loss = step.loss
    if loss is None or not math.isfinite(loss):
        return
    before = step.memory.before("loss")[-window:]
    if len(before) == window:
        usual = median(before)
        spread = 1.4826 * median(abs(one - usual) for one in before)
        limit = usual + max(factor * spread, share * abs(usual))
        if loss > limit:
            words = (
                f"the loss is {loss:.4g}; over the last {window} watched steps it was {usual:.4g}"
            )
            yield step.hit("loss", words, value=loss, limit=limit)
    step.memory.remember("loss", loss)
