"""Gradients that are zero altogether."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.wings.watch.observed import Hit, ObservedStep, norm_of


def zero_gradient(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """Every element of a parameter's gradient is zero.

    Formula: all elements 0 in so many watched steps in a row, while the loss is above a thousandth of what it began
    with.

    Usual cause: dead ReLUs behind it, a product with zero, an argmax or a rounding in the way, fp16 gradients that
    are flushed to zero.

    Cure: look at the activation behind it; in fp16 a larger loss scale.

    Source: MindInsight's debugger, watchpoint "tensor all zero".
    """
    for name, (call, record) in step.gradients.items():
        is_zero = norm_of(record) == 0.0 and record.content.numel > 0 and not step.has_learned
        if step.memory.in_a_row("zero", name, is_zero) >= steps:
            words = f"the gradient of {name} is zero in all {record.content.numel} elements"
            yield step.hit(name, words, value=0.0, call=call)
