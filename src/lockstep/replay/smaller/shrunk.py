"""The result of making the inputs of a call smaller. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from lockstep.core.text import printable
from lockstep.replay.calls.held_results import Held, Result, result_of
from lockstep.replay.smaller.cut import Cut

_MOST_CHARACTERS = 4096


class Makes(str, Enum):
    """Where the results on smaller inputs come from."""

    MACHINE = "run again on the machine that is off"
    CALL = "the candidate's call, run again"
    PART = "the part of what was recorded that belongs to them"


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Smaller inputs on which a call still fails in the same way.

    Parameters
    ----------
    makes
        Where results on them come from.
    cut
        What is kept; without ranges where nothing smaller fails.
    before, after
        Results on the inputs as recorded, and on what is kept.
    attempts
        Cuts that were tried.
    why
        Why nothing smaller was found, or "".
    in_time
        Whether the search came to its end.
    """

    makes: Makes
    cut: Cut
    before: tuple[Result, ...]
    after: tuple[Result, ...]
    attempts: int
    why: str
    in_time: bool


Key = tuple[str, int, int]
"""A result by role, index and occurrence."""


def failing(results: tuple[Result, ...]) -> dict[Key, Held]:
    """Return the results beyond their limit, the worst first."""
    found = {
        (result.role.value, result.index, result.occurrence): held
        for result in results
        for held in result.held
        if not held.sound
    }
    return dict(sorted(found.items(), key=lambda one: -one[1].excess))


def shrunk_of(said: dict[str, Any]) -> Shrunk:
    """Return a result from JSON values, each of its type.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
    """
    ranges = [
        (int(index), int(axis), int(start), int(stop))
        for index, axis, start, stop in said["cut"]["ranges"]
    ]
    if any(axis < 0 or not 0 <= start < stop for _, axis, start, stop in ranges):
        raise ValueError("a part lies within its tensor")
    resized = [(int(old), int(new)) for old, new in said["cut"]["resized"]]
    before, after = (tuple(result_of(one) for one in said[name]) for name in ("before", "after"))
    return Shrunk(
        Makes(said["makes"]),
        Cut(tuple(ranges), tuple(resized)),
        before,
        after,
        int(said["attempts"]),
        printable(str(said["why"]))[:_MOST_CHARACTERS],
        bool(said["in_time"]),
    )
