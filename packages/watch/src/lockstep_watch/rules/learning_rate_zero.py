"""An optimizer that is not to move."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep


def learning_rate_zero(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """The learning rate of every group is zero.

    Formula: all learning rates are 0.

    Usual cause: a scheduler that is stepped before its optimizer or by the wrong count, a training that goes on after
    the end of its schedule, a division of whole numbers.

    Cure: look at your scheduler's length, in optimizer steps or in batches, and at its state in your checkpoint.

    Source: Lockstep's.
    """
    rates = step.learning_rates
    is_zero = bool(rates) and not any(rates)
    if step.memory.in_a_row("rate of zero", "", is_zero) >= steps:
        yield step.hit("learning rate", "the learning rate of every group is zero", value=0.0)
