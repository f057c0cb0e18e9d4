"""How many replicas a version has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """`least` replicas of each version, and up to `most` while requests wait; a run may take `timeout_s`."""

    least: int = 1
    most: int = 1
    timeout_s: float = 60.0
