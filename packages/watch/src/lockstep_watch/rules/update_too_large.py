"""Updates that are large beside what they change."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.update_ratio import has_fallen, ratio_of


def update_too_large(step: ObservedStep, *, limit: float = 0.1, steps: int = 10) -> Iterator[Hit]:
    """A weight is changed by a tenth of itself, step after step, and the loss has not fallen.

    Formula: `|w' - w| / (|w| + 1e-9 sqrt(n)) > limit`, for parameters of two axes or more, while the median loss of
    the last five watched steps is not below the first loss and the median of the first five.

    Usual cause: too large a learning rate for this weight, a warm-up that is missing, a scaler's factor that was
    not taken out of the gradients.

    Cure: a smaller learning rate, for this group at least; a warm-up; look at how the weight starts.

    Source: MindInsight's debugger, watchpoint "weight change too large" (0.1).
    """
    for update in step.updates:
        value = ratio_of(update)
        if value is None or not update.is_weight or step.is_skipped:
            continue
        row = step.memory.in_a_row("large update", update.name, value > limit)
        if row >= steps and not has_fallen(step):
            words = f"{update.name} changes by {value:.3g} of itself in a step, {row} watched steps in a row"
            yield step.hit(update.name, words, value=value, limit=limit, call=update.call)
