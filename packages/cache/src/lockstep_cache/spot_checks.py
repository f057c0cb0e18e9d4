"""Which hits are loaded again: the first ones of each process and epoch, and each sample in its turn."""

from __future__ import annotations

import math
import mmap
import random
from collections.abc import Sequence

import numpy as np

from lockstep.errors import UsageError

RATE = 0.01
"""Of all hits, if the user says nothing else."""

_SURE = 2
"""So many first hits of a process and epoch are always loaded again."""

_MOST_HITS = (1 << 16) - 1
"""Between two checks of a sample, for an age has 16 bits."""


def own_generator() -> random.Random:
    """Return a generator that begins anywhere, and leaves that of the module `random` where it is."""
    return random.Random()


def hits_between(rate: float, rows: int) -> int:
    """Return after how many hits a sample is loaded again at the latest.

    Small data sets are looked at more often than at the rate: in an epoch of `n` hits as many samples take their turn
    as a chance of `2 / h` of the h-th hit, and never less than the rate, would choose after the first two.
    """
    often = min(rows, _SURE / rate)
    turns = _SURE * math.log(max(often / _SURE, 1)) + rate * max(rows - often, 0)
    needed = math.ceil(rows / turns) if turns > 0 else 1
    return min(max(needed, 1), math.ceil(1 / rate), _MOST_HITS)


class SpotChecks:
    """Chooses hits: two first ones, then the h-th with a chance of `1 / h`, and each sample in rotation.

    Each sample has an age, the hits since it was loaded last; the first ages are random. A sample whose age reaches
    `within` is loaded again. Workers that are forked share the ages.

    rate: The least share of hits that are loaded again.
    rows: How many samples there are; 0 for a stream, which has no rotation.

    within: After how many hits a sample is loaded again at the latest; 0 for a stream.

    Raises UsageError if that is no share.
    """

    def __init__(self, rate: float, rows: int = 0) -> None:
        if not 0 < rate <= 1:
            raise UsageError(f"check_rate={rate} is not a share of hits; give one above 0, up to 1")
        self._rate, self._rows = rate, rows
        self.within = hits_between(rate, rows) if rows else 0
        self._ages = memoryview(mmap.mmap(-1, 2 * max(rows, 1))).cast("H")
        first = np.random.default_rng(own_generator().getrandbits(64))
        ages = np.frombuffer(self._ages, np.uint16)
        ages[:rows] = first.integers(0, max(self.within, 1), rows)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """The next hits are the first ones of an epoch, or of a process."""
        self._hits, self._chance = 0, own_generator()

    def is_due_as_a_whole(self) -> bool:
        """Whether a stream is to be read again in this epoch."""
        return self._chance.random() < self._rate

    def due(self, rows: Sequence[int]) -> list[int]:
        """Which of the hits of these rows, which are given out now, are to be loaded again."""
        found, ages, within = [], self._ages, self.within
        for place, row in enumerate(rows):
            age = ages[row] + 1
            self._hits += 1
            if age >= within or (self._hits <= within and self._is_early()):
                found.append(place)
                age = self._chance.getrandbits(1) if within > 2 else 0
            ages[row] = age
        return found

    def _is_early(self) -> bool:
        return self._hits <= _SURE or self._chance.random() * self._hits < 1
