"""Weights that an optimizer does not change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep, Update, norm_of, rms_of

_CONVERGED = 1e-3
_ROUNDING = 1e-5


def weight_unchanged(
    step: ObservedStep,
    *,
    absolute: float = 1e-8,
    relative: float = 1e-5,
    steps: int = 3,
    steps_if_any: int = 10,
) -> Iterator[Hit]:
    """A parameter is held by an optimizer, gets a gradient, and stays the same.

    Formula: `w' = w` to the last bit, or `|w' - w| <= absolute * sqrt(n) + relative * |w|` in `steps_if_any`
    watched steps in a row, with a gradient that is not zero. Not counted: steps that a scaler skips, learning rates
    of zero, gradients below a thousandth of their earlier size or below 1e-5 of the step's largest (root mean
    squares), scales and biases in half precision. Small changes count for two axes or more and at the full learning
    rate only.

    Usual cause: a learning rate that the dtype swallows (bf16 weights), one that is zero for this group, an optimizer
    that holds a copy of the parameter.

    Cure: keep weights in float32, look at the group's options, build your optimizer after `.to()`.

    Source: MindInsight's debugger, watchpoint "weight not changed" (1e-8, 1e-5).
    """
    largest = max((_gradient_rms(one) for one in step.updates), default=0.0)
    for update in step.updates:
        learns = not step.is_skipped and _learns(update) and not _is_narrow_scale(update)
        counts = learns and _is_pulled(step, update, _ROUNDING * largest)
        change, bound = update.change, _bound(update, absolute, relative)
        little = update.is_weight and change is not None and bound is not None and change <= bound
        none = step.memory.in_a_row("unchanged", update.name, counts and update.is_unchanged)
        row = step.memory.in_a_row(
            "little", update.name, counts and little and step.is_at_full_rate
        )
        if row >= steps_if_any or none >= steps:
            how = "not at all" if not change else f"by {change:.2g} only"
            words = f"{update.name} changes {how}, though it gets a gradient"
            yield step.hit(
                update.name, words, value=change or 0.0, limit=bound or 0.0, call=update.call
            )


def _learns(update: Update) -> bool:
    rate = update.call.arguments.get("lr")
    return not isinstance(rate, int | float) or rate != 0


def _is_narrow_scale(update: Update) -> bool:
    before = update.before
    return before is not None and len(before.shape) < 2 and before.dtype != "float32"


def _is_pulled(step: ObservedStep, update: Update, least: float) -> bool:
    """Whether there is a gradient that is no rounding, and no mere rest of what it was."""
    rms = _gradient_rms(update)
    key = "weight-unchanged", update.name
    largest: float = max(rms, step.memory.facts.get(key, 0.0))
    step.memory.facts[key] = largest
    return rms > max(least, _CONVERGED * largest)


def _gradient_rms(update: Update) -> float:
    return (None if update.gradient is None else rms_of(update.gradient)) or 0.0


def _bound(update: Update, absolute: float, relative: float) -> float | None:
    if update.before is None:
        return None
    norm = norm_of(update.before)
    if norm is None:
        return None
    return absolute * math.sqrt(update.before.content.numel) + relative * norm
