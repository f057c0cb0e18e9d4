"""Which hits are loaded again: a share of all, and more of the first ones of each process and epoch."""

from __future__ import annotations

import math
import random

from lockstep.core.errors import UsageError

RATE = 0.01
"""Of all hits, if the user says nothing else."""

_SURE = 2
"""So many first hits of a process and epoch are always loaded again; of the h-th one `_SURE / h`, down to the rate."""


def own_generator() -> random.Random:
    """Return a generator that begins anywhere, and leaves that of the module `random` where it is."""
    return random.Random()


class SpotChecks:
    """Chooses hits at random, by a generator of its own.

    The choice of each hit is independent of all others, so that `k` wrong samples that are read for `e` epochs pass
    unseen with a chance of at most `(1 - rate) ** (k * e)`.

    Parameters
    ----------
    rate
        The least chance of a hit to be chosen.

    Raises
    ------
    UsageError
        If that is no share.
    """

    def __init__(self, rate: float) -> None:
        if not 0 < rate <= 1:
            raise UsageError(f"check_rate={rate} is not a share of hits; give one above 0, up to 1")
        self._rate = rate
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """The next hits are the first ones of an epoch, or of a process."""
        self._hits, self._chance = 0, own_generator()
        self._next = 1

    def is_due_as_a_whole(self) -> bool:
        """Whether a stream is to be read again in this epoch."""
        return self._chance.random() < self._rate

    def due(self, count: int) -> list[int]:
        """Which of so many hits, which are given out now, are to be loaded again."""
        found, first = [], self._hits + 1
        self._hits += count
        while self._next <= self._hits:
            found.append(self._next - first)
            self._next = self._after(self._next)
        return found

    def _after(self, hit: int) -> int:
        """The next hit that is chosen: by one throw for each, or by one for all where all have the same chance.

        The number of throws up to the first success is `1 + floor(log(u) / log(1 - p))` for a uniform u (inversion of
        the geometric distribution; Devroye, "Non-Uniform Random Variate Generation", 1986, X.2).
        """
        hit += 1
        while hit * self._rate < _SURE:
            if self._chance.random() * hit < _SURE:
                return hit
            hit += 1
        if self._rate == 1:
            return hit
        return hit + math.floor(math.log(1 - self._chance.random()) / math.log1p(-self._rate))
