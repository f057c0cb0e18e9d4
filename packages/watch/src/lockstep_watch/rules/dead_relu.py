"""ReLUs that let nothing through."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep


def dead_relu(step: ObservedStep, *, share: float = 0.999, steps: int = 3) -> Iterator[Hit]:
    """Next to all results of a ReLU are zero, so that no gradient comes through.

    Formula: `zeros / elements >= share`.

    Usual cause: a learning rate that has moved biases far below zero, inputs that are not normalised, a wrong sign.

    Cure: a smaller learning rate, LeakyReLU or GELU, and normalise your inputs.

    Source: MindInsight's debugger, watchpoint "activation range" for ReLU.
    """
    for call, record in step.outputs("relu", "relu6", "threshold"):
        numbers, count = record.statistics, record.content.numel
        if numbers is None or count < 2:
            continue
        value = numbers.zero_count / count
        if step.memory.in_a_row("dead", str(call.site), value >= share) >= steps:
            words = f"{value:.1%} of what {call.site.op} gives is zero"
            yield step.hit(str(call.site), words, value=value, limit=share, call=call)
