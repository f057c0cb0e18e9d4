"""Bound the rounding of a sum whose summands several ranks hold."""

from __future__ import annotations

from lockstep.core.content_notes import NoteKind
from lockstep.measure.measured_pair import Measured


def rounded_parts(output: Measured) -> float:
    """Return how far the roundings of its parts may take a tensor that was added up of them, as Euclidean distance.

    A rank rounds its part `g_r` before anything is added: by at most `u |g_r|` in each element, with the unit roundoff
    `u` of their dtype. One rank rounds the sum alone, so where parts cancel the sums differ by more than `u |sum g_r|`.
    What is added up of `n` parts is then off by `u (|g_1| + ... + |g_n|)` at most; the recording tells that number, of
    the Euclidean norms. 0 for any other tensor.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2 (sums in any order).
    """
    notes = (
        record.content.told
        for record in (output.pair.reference, output.pair.candidate)
        if record is not None
    )
    return sum(float(one.fields[1]) for one in notes if one.kind is NoteKind.ADDED_UP)


__all__ = ["rounded_parts"]
