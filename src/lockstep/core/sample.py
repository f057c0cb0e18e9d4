"""How the sampled elements of an update are called in a recording."""

from __future__ import annotations

BETWEEN, AFTER = "|", "after"
"""`param`, `grad` or the name of a state; of what the update left, `|after` stands behind it."""


def key_and_time(name: str) -> tuple[str, bool]:
    """What a sample is of, and whether it was taken after the update.

    >>> key_and_time("exp_avg|after")
    ('exp_avg', True)
    """
    key, _, when = name.partition(BETWEEN)
    return key, when == AFTER
