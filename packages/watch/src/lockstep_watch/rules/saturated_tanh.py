"""Hyperbolic tangents that are at their ends."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.saturation import activations, mean_and_mean_square


def saturated_tanh(step: ObservedStep, *, slope: float = 0.02, steps: int = 3) -> Iterator[Hit]:
    """Next to all results of a tanh are -1 or 1, so that next to no gradient comes through.

    Formula: `mean slope = 1 - |y|^2 / n < slope`, of at most 1, where a gradient comes back. It is exact: the slope
    at x is `1 - tanh(x)^2`.

    Usual cause: inputs that are not normalised, weights that start too large, too large a learning rate.

    Cure: normalise your inputs, start with smaller weights (Glorot), a smaller learning rate.

    Source: MindInsight's debugger, watchpoint "activation range" for tanh, `|x| > 8.8`. A mean slope of 0.02 is
    reached where 98 of 100 elements are that far out; a sound tanh is above 0.2.
    """
    for call, record in activations(step, "tanh"):
        both = mean_and_mean_square(record)
        if both is None:
            continue
        value = max(0.0, 1.0 - both[1])
        if step.memory.in_a_row("saturated", str(call.site), value < slope) >= steps:
            words = (
                f"the mean slope of {call.site.op} is {value:.2g}, of at most 1: it is saturated"
            )
            yield step.hit(str(call.site), words, value=value, limit=slope, call=call)
