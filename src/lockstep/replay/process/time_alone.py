"""How much processor time calls take, each run alone. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Timed:
    """Processor time of each call in seconds, the shortest of a few runs; NaN for one that cannot be run alone."""

    seconds: tuple[float, ...]


def timed_of(said: dict[str, Any]) -> Timed:
    """Times out of JSON values, each of its type.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
    """
    return Timed(tuple(float(one) for one in said["seconds"]))
