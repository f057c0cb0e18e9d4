"""A loss that stays where it began."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from lockstep_watch.observed import Hit, ObservedStep

_WINDOW = ("loss-not-falling", "first losses")


def loss_not_falling(step: ObservedStep, *, window: int = 500, share: float = 0.1) -> Iterator[Hit]:
    """After many steps the loss is not below that of the first ones.

    Formula: median of the newest losses >= median of the first ones, each over `share * window` watched steps, once
    there are `window` of them. If your training goes on from a checkpoint, or plays against another net:
    `--skip-rule loss-not-falling`.

    Usual cause: a learning rate that is far too small or too large, a layer without a gradient, wrong labels, a
    loss of the wrong tensors.

    Cure: `lockstep guide converges-slowly`; let your model learn a single batch by heart first.

    Source: MindInsight's method for accuracy problems ("loss does not converge").
    """
    loss, few = step.loss, max(1, round(share * window))
    if loss is None or not math.isfinite(loss):
        return
    first = step.memory.facts.setdefault(_WINDOW, [])
    if len(first) < few:
        first.append(loss)
    newest = [one for one in step.memory.losses if math.isfinite(one)]
    if len(newest) >= window:
        began, now = median(first), median(newest[-few:])
        if now >= began:
            words = f"the loss is {now:.4g} and was {began:.4g} at the start"
            yield step.hit("loss", words, value=now, limit=began)
