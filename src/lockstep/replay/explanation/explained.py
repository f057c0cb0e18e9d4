"""All families of hypotheses, simplest first, on one result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.core.finding import Explanation
from lockstep.replay.explanation.error_shapes import factors, offset, places, sign
from lockstep.replay.explanation.fitted_settings import fitted
from lockstep.replay.explanation.hypothesis import Prediction, best
from lockstep.replay.explanation.other_precisions import precisions
from lockstep.replay.explanation.other_settings import (
    another_operator,
    as_called,
    left_out,
    settings,
)
from lockstep.replay.explanation.other_updates import updates
from lockstep.replay.explanation.right_elsewhere import another_tensor, moved, terms
from lockstep.replay.explanation.subject import Subject
from lockstep.replay.explanation.unexplained import Unexplained

FAMILIES: tuple[Callable[[Subject], Iterator[Prediction]], ...] = (
    as_called,
    updates,
    sign,
    factors,
    precisions,
    another_operator,
    another_tensor,
    settings,
    left_out,
    moved,
    offset,
    fitted,
    places,
    terms,
)
"""In order of what is tried; the first family that explains a result does."""


def explained(question: Unexplained, memory_bytes: int) -> Explanation | None:
    """What the candidate computes instead; None where nothing explains it to its noise floor.

    Raises
    ------
    CannotReplay
        If its tensors were not saved whole, or take more memory than they may.
    """
    subject = Subject(question, memory_bytes)
    for family in FAMILIES:
        found = best(subject, family(subject))
        if found is not None:
            return found
    return None
