"""How large an update is beside its weight, and whether the loss falls meanwhile."""

from __future__ import annotations

import math
from statistics import median

from lockstep_watch.observed import ObservedStep, Update, norm_of

_FIVE = 5


def ratio_of(update: Update) -> float | None:
    """|w' - w| / (|w| + 1e-9 sqrt(n)), dimensionless; None where it is not known."""
    norm = None if update.before is None else norm_of(update.before)
    change = update.change
    if update.before is None or norm is None or change is None:
        return None
    return change / (norm + 1e-9 * math.sqrt(max(1, update.before.content.numel)))


def has_fallen(step: ObservedStep) -> bool:
    """Whether the loss is below what it was at the start; True where too few are known to tell."""
    first, last = step.memory.first_losses[:_FIVE], step.memory.losses[-_FIVE:]
    if len(step.memory.losses) < 2 * _FIVE or not first:
        return True
    is_finite = all(math.isfinite(one) for one in last)
    return is_finite and median(last) < min(first[0], median(first))
