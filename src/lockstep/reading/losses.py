"""Read the losses of a training: of its recorded steps, and of the steps after them."""

from __future__ import annotations

import math

from lockstep.core.records import Statistics
from lockstep.core.site import CallKind, Role
from lockstep.core.states import LaterLoss
from lockstep.store.reader import RankRecording


def losses_of(rank: RankRecording) -> list[LaterLoss]:
    """Return the losses of a rank's recorded steps and of later ones, in order of time.

    Raises CorruptError if a file of it is damaged.
    """
    found = []
    for step in rank.steps:
        for call in rank.calls(step, kind=CallKind.LOSS):
            for record in call.records:
                content, known = record.content, record.statistics
                if record.role is Role.LOSS and known is not None and content.numel == 1:
                    found.append(LaterLoss(step, _value(known), content.dtype))
    return [*found, *rank.losses]


def _value(known: Statistics) -> float:
    """The number of a tensor of one element."""
    if known.nan_count:
        return math.nan
    return math.inf if known.inf_count else known.mean
