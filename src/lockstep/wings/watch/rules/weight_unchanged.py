"""Weights that an optimizer does not change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.wings.watch.observed import Hit, ObservedStep, Update, norm_of


def weight_unchanged(
    step: ObservedStep,
    *,
    absolute: float = 1e-8,
    relative: float = 1e-5,
    steps: int = 3,
    steps_if_any: int = 10,
) -> Iterator[Hit]:
    """A parameter is held by an optimizer, gets a gradient, and stays what it was.

    Formula: w' = w to the last bit in `steps` watched steps in a row, or |w' - w| <= absolute * sqrt(n) + relative *
    |w| in Euclidean norms - which holds wherever it holds of each element - in `steps_if_any`, with a gradient that is
    not zero. Steps that a scaler skips and learning rates of zero do not count.

    Usual cause: a learning rate that the dtype swallows (bf16 weights), one that is zero for this group, an optimizer
    that holds a copy of the parameter.

    Cure: keep weights in float32, look at the group's options, build the optimizer behind `.to()`.

    Source: MindInsight's debugger, watchpoint "weight not changed" (1e-8, 1e-5).
    """
    for update in step.updates:
        counts = not step.is_skipped and _learns(update) and _has_gradient(update)
        change, bound = update.change, _bound(update, absolute, relative)
        little = counts and change is not None and bound is not None and change <= bound
        none = step.memory.in_a_row("unchanged", update.name, counts and update.is_unchanged)
        if step.memory.in_a_row("little", update.name, little) >= steps_if_any or none >= steps:
            how = "not at all" if not change else f"by {change:.2g} only"
            words = f"{update.name} changes {how}, though it gets a gradient"
            yield step.hit(
                update.name, words, value=change or 0.0, limit=bound or 0.0, call=update.call
            )


def _learns(update: Update) -> bool:
    rate = update.call.arguments.get("lr")
    return not isinstance(rate, int | float) or rate != 0


def _has_gradient(update: Update) -> bool:
    """Whether it gets one that is finite and not zero."""
    return update.gradient is not None and bool(norm_of(update.gradient))


def _bound(update: Update, absolute: float, relative: float) -> float | None:
    if update.before is None:
        return None
    norm = norm_of(update.before)
    if norm is None:
        return None
    return absolute * math.sqrt(update.before.content.numel) + relative * norm
