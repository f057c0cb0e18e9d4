"""All families of hypotheses, on the results of one call: what somebody may have written before what merely fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lockstep.core.finding import Explanation
from lockstep.replay.explanation.accumulated import accumulated
from lockstep.replay.explanation.error_shapes import factors, offset, other_positions, places, sign
from lockstep.replay.explanation.fitted_settings import fitted
from lockstep.replay.explanation.hypothesis import Prediction, best
from lockstep.replay.explanation.left_out_parts import (
    incoming_parts,
    input_parts,
    last_writes,
)
from lockstep.replay.explanation.mismatch import Mismatch
from lockstep.replay.explanation.other_formulas import formulas, like_operators, without_term
from lockstep.replay.explanation.other_inputs import in_other_memory, inputs
from lockstep.replay.explanation.other_orders import gates, orders_of_inputs, orders_of_results
from lockstep.replay.explanation.other_precisions import precisions
from lockstep.replay.explanation.other_settings import another_operator, as_called, settings
from lockstep.replay.explanation.other_updates import fitted_updates, updates
from lockstep.replay.explanation.right_elsewhere import another_tensor, moved, terms
from lockstep.replay.explanation.stale_tensors import stale
from lockstep.replay.questions import Unexplained

Family = Callable[[Mismatch], Iterator[Prediction]]

WRITTEN: tuple[Family, ...] = (
    as_called,
    another_operator,
    updates,
    settings,
    inputs,
    formulas,
    without_term,
    like_operators,
    precisions,
    accumulated,
    in_other_memory,
    gates,
    last_writes,
    incoming_parts,
    input_parts,
    stale,
    other_positions,
    another_tensor,
    sign,
    moved,
    orders_of_results,
    orders_of_inputs,
    fitted,
    fitted_updates,
    factors,
)
"""What somebody may have written, in order of what is tried: the first that explains all results does."""

FITTING: tuple[Family, ...] = (offset, places, terms)
"""What says little more than where the error is."""


def explained(question: Unexplained, memory_bytes: int) -> Explanation | None:
    """Return the computation that explains all results of a call to their noise floors, None if there is none.

    Raises CannotReplay if its tensors were not saved whole, or take more memory than they may.
    """
    mismatch = Mismatch(question, memory_bytes)
    found = _best_of_all(mismatch)
    if found is None:
        return None
    return replace(found, words=found.words.replace("the result", mismatch.noun, 1))


def _best_of_all(mismatch: Mismatch) -> Explanation | None:
    """What the first family says that explains all results, or else what holds for the main one alone."""
    alone = None
    for family in WRITTEN:
        found = best(mismatch, family(mismatch))
        if found is not None and not found.alone:
            return found.explanation
        alone = alone or found
    for family in FITTING if alone is None else ():
        alone = best(mismatch, family(mismatch))
        if alone is not None:
            break
    return None if alone is None else alone.explanation
