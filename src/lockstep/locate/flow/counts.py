"""Single whole numbers, such as counters: they do not round, so both values say everything."""

from __future__ import annotations

import math

from lockstep.core.dtypes import is_floating
from lockstep.core.finding import Pair

_COUNTED = {"step": "update", "num_batches_tracked": "batch"}
"""What torch counts under these names: updates of an optimizer, batches of a batch normalisation in training mode."""


def both_counts(pair: Pair) -> tuple[int, int] | None:
    """Return both values of a pair of single whole numbers, whatever their dtype; None for anything else.

    A truth value is no count.
    """
    values: list[int] = []
    for record in (pair.reference, pair.candidate):
        if record is None or record.statistics is None or record.content.numel != 1:
            return None
        value = record.statistics.maximum
        if record.dtype == "bool" or not (math.isfinite(value) and value == int(value)):
            return None
        if record.statistics.minimum != value:  # written by another tool, which left it out
            return None
        values.append(int(value))
    return values[0], values[1]


def count_words(pair: Pair) -> str:
    """Return both counts in words, "" if they are not two counts that differ.

    Of floating numbers only those count that torch counts in.

    `is 3 in the reference and 4 in the candidate: the candidate counted one more update`
    """
    counts = both_counts(pair)
    if counts is None or counts[0] == counts[1]:
        return ""
    said = f"is {counts[0]} in the reference and {counts[1]} in the candidate"
    what = _COUNTED.get(pair.present.name.rpartition("|")[2].rpartition(".")[2])
    if what is None:
        return "" if is_floating(pair.present.dtype) else said
    more = abs(counts[1] - counts[0])
    side = "candidate" if counts[1] > counts[0] else "reference"
    plural = "" if more == 1 else "es" if what.endswith("ch") else "s"
    return f"{said}: the {side} counted {'one' if more == 1 else more} more {what}{plural}"
