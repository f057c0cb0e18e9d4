"""Updates that are nothing beside what they change."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.update_ratio import has_fallen, ratio_of

_LARGEST = ("update-too-small", "largest ratio")


def update_too_small(step: ObservedStep, *, limit: float = 1e-4, steps: int = 20) -> Iterator[Hit]:
    """From the start, weights change by next to nothing, at the full learning rate, and the loss does not fall.

    Formula: median over weights (two axes or more, with a gradient) of `|w' - w| / (|w| + 1e-9 sqrt(n)) < limit`,
    at the largest learning rate so far. Not counted: a training whose updates were once larger, or whose loss falls
    (as for `update-too-large`).

    Usual cause: a learning rate that is too small by orders of magnitude, gradients that are clipped to nothing or
    divided twice, weights that start too large.

    Cure: a larger learning rate: Adam's update is about the learning rate in each element; look at the clipping norm.

    Source: MindInsight's debugger, watchpoint "weight change too small" (1e-4).
    """
    changed = [one for one in step.updates if one.is_weight and one.has_gradient]
    ratios = [ratio_of(one) for one in changed if not one.is_unchanged]
    known = [one for one in ratios if one is not None]
    if not known or step.is_skipped or not step.is_at_full_rate:
        return
    value, facts = median(known), step.memory.facts
    facts[_LARGEST] = max(value, facts.get(_LARGEST, 0.0))
    row = step.memory.in_a_row("small updates", "", value < limit)
    if row >= steps and facts[_LARGEST] < limit and not has_fallen(step):
        words = f"half of the weights change by less than {value:.2g} of themselves in a step"
        yield step.hit("weights", words, value=value, limit=limit)
