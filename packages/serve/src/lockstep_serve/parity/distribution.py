"""How an output's errors are distributed over the requests that were compared."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

_KEPT = 4096
"""Errors that are kept for quantiles; of more, each is as likely to be among them as any other."""
_QUANTILES = (0.5, 0.9, 0.99)


class Errors:
    """Relative distances of one output, and how often its largest element is at the same place.

    Of more than are kept a sample is drawn without knowing how many come: the next replaces a kept one at random with
    probability kept / seen (J. S. Vitter, Random Sampling with a Reservoir, ACM TOMS 11 (1985), algorithm R). The
    largest is exact.

    draw: What the sample is drawn by.
    """

    def __init__(self, draw: Random) -> None:
        self._draw, self._kept = draw, list[float]()
        self.count, self.largest = 0, 0.0
        self._same = self._of = 0

    def add(self, difference: float | None, top1_same: int, top1_of: int) -> None:
        """Add a request's; None for a distance that is no number."""
        self._same += top1_same
        self._of += top1_of
        if difference is None:
            return
        self.count += 1
        self.largest = max(self.largest, difference)
        if len(self._kept) < _KEPT:
            self._kept.append(difference)
        elif (place := self._draw.randrange(self.count)) < _KEPT:
            self._kept[place] = difference

    def told(self) -> dict[str, Any]:
        """As JSON has it; null where there is none."""
        values = np.quantile(self._kept, _QUANTILES) if self._kept else [None] * len(_QUANTILES)
        names = [f"p{100 * one:g}" for one in _QUANTILES]
        return {
            "count": self.count,
            **{
                name: None if one is None else float(one)
                for name, one in zip(names, values, strict=True)
            },
            "max": self.largest if self.count else None,
            "top1_agreement": self._same / self._of if self._of else None,
            "top1_rows": self._of,
        }

    def __str__(self) -> str:
        """Quantiles and agreement, in a few words."""
        told = self.told()
        parts = [
            f"{name} {told[name]:.3g}"
            for name in ("p50", "p90", "p99", "max")
            if told[name] is not None
        ]
        words = f"error {', '.join(parts)}" if parts else ""
        if not self._of:
            return words
        return f"{words}, top-1 {self._same / self._of:.2%} of {self._of} rows".lstrip(", ")
