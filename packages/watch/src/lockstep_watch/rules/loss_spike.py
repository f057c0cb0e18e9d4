"""One step with a far larger loss than those before."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.usual import usual

_OF_START = 0.5
_OF_LARGEST = 2.0


def loss_spike(
    step: ObservedStep,
    *,
    factor: float = 12.0,
    window: int = 10,
    share: float = 0.5,
    ratio: float = 4.0,
) -> Iterator[Hit]:
    """The loss is far above that of the steps before.

    Formula: `l - m > factor * s`, `l - m > share * |m|`, `log(l / m) > ratio * s'`, `l > l0 / 2` and `l - m > 2 *
    (l' - m)`, where m is the median of the last `window` watched steps, s their spread and s' that of their
    logarithms (medians of deviations, times 1.4826), l' their largest and l0 the largest of the first ten.

    Usual cause: a bad batch (an outlier, wrong labels, padding), too large a learning rate, state that was lost at
    a restart.

    Cure: look at that step's batch (`--save-on loss-spike`), clip your gradients, warm up longer.

    Source: Rousseeuw and Croux, JASA 1993, for the spread.
    """
    loss = step.loss
    if loss is None or not math.isfinite(loss):
        return
    before = [one for one in step.memory.losses[:-1] if math.isfinite(one)][-window:]
    if len(before) < window:
        return
    was = usual(before)
    limit = was.median + max(factor * was.spread, share * abs(was.median))
    if was.median > 0.0:
        limit = max(limit, was.median * math.exp(min(700.0, ratio * was.ratio)))
    limit = max(limit, _OF_START * (step.memory.loss_at_start or 0.0))
    limit = max(limit, was.median + _OF_LARGEST * (max(before) - was.median))
    if loss > limit:
        words = (
            f"the loss is {loss:.4g}; over the last {window} watched steps it was {was.median:.4g}"
        )
        yield step.hit("loss", words, value=loss, limit=limit)
