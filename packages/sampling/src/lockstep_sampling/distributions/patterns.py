"""Where differences lie that no rule explains: in padded sequences alone, or behind the first drawn token alone.

A pattern says what was counted, and what makes such a pattern; it does not prove the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lockstep_sampling.distributions.positions import Position, by_sequence


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which positions differ, all of them and no other.

    said: For a person.
    kind: In one word, for programs: padding, cache.
    """

    said: str
    kind: str


_PADDING = Pattern(
    "all of the sequences with fewer tokens before them than the longest, and none of the others, as where padding"
    " takes part",
    "padding",
)
_CACHE = Pattern(
    "all but the first token that each sequence draws, as where the cache of earlier tokens is not what was computed",
    "cache",
)


def pattern_of(positions: Sequence[Position], beyond: Collection[Position]) -> Pattern | None:
    """Return where those beyond rounding lie; None where they have no pattern."""
    different = {(one.sequence, one.place) for one in beyond}
    sequences = [
        (each[0].place, [(one.sequence, one.place) in different for one in each])
        for each in by_sequence(positions)
    ]
    if not different or len(sequences) < 2:
        return None
    longest = max(place for place, _ in sequences)
    if any(place < longest for place, _ in sequences) and all(
        all(each) if place < longest else not any(each) for place, each in sequences
    ):
        return _PADDING
    if all(len(each) > 1 and not each[0] and all(each[1:]) for _, each in sequences):
        return _CACHE
    return None


__all__ = ["Pattern", "pattern_of"]
