"""Sigmoids that are at their ends."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.saturation import activations, mean_and_mean_square


def saturated_sigmoid(step: ObservedStep, *, slope: float = 0.005, steps: int = 3) -> Iterator[Hit]:
    """Next to all results of a sigmoid are 0 or 1, so that next to no gradient comes through.

    Formula: `mean slope = mean(y) - |y|^2 / n < slope`, of at most 0.25, where a gradient comes back. It is exact:
    the slope at x is `y - y^2`. Not counted: a sigmoid that goes into a logarithm or a binary cross entropy, which
    undo the slope.

    Usual cause: inputs that are not normalised, weights that start too large, too large a learning rate.

    Cure: normalise your inputs, start with smaller weights, a smaller learning rate; ReLU or GELU inside of a net.

    Source: MindInsight's debugger, watchpoint "activation range" for sigmoid, `|x| > 16.2`. A mean slope of 0.005
    is a fiftieth of the largest, as for `saturated-tanh`.
    """
    for call, record in activations(step, "sigmoid"):
        both = mean_and_mean_square(record)
        if both is None:
            continue
        value = max(0.0, both[0] - both[1])
        if step.memory.in_a_row("saturated", str(call.site), value < slope) >= steps:
            words = (
                f"the mean slope of {call.site.op} is {value:.2g}, of at most 0.25: it is saturated"
            )
            yield step.hit(str(call.site), words, value=value, limit=slope, call=call)
