"""What a detector has found, before it is ranked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that slows a training; the parameters are those of `bottlenecks.Bottleneck`."""

    what: str
    place: str
    cost_us: float
    evidence: str
    advice: str
