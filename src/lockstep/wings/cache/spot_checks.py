"""Which hits are loaded again: a share of all, and more of the first ones of each process and epoch."""

from __future__ import annotations

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
            raise UsageError(f"check_rate={rate} is no share of hits; give one above 0, up to 1")
        self._rate, self._hits = rate, 0
        self._chance = own_generator()

    def begin_epoch(self) -> None:
        """The next hits are the first ones of an epoch, or of a process."""
        self._hits, self._chance = 0, own_generator()

    def is_due_as_a_whole(self) -> bool:
        """Whether a stream is to be read again in this epoch."""
        return self._chance.random() < self._rate

    def is_due(self) -> bool:
        """Whether the hit that is given out now is to be loaded again."""
        self._hits += 1
        return self._chance.random() * self._hits < max(_SURE, self._rate * self._hits)
