"""Ranks by the names of their directories: their order, and which of a training are not here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count

RANK = re.compile(r"rank\d+(-\d+)?")


def rank_order(name: str) -> tuple[int, ...]:
    """Return the key that sorts names of ranks: `rank2` before `rank10`, `rank2-1` after `rank2`."""
    return tuple(int(part) for part in name.removeprefix("rank").split("-"))


def absent_ranks(names: Iterable[str], world_size: int) -> Iterator[str]:
    """A sentence where processes of the training are not among these."""
    here = {rank_order(name)[0] for name in names}
    absent = world_size - len(here)
    if absent > 0:
        first = next(number for number in count() if number not in here)
        yield f"rank{first}: not in this recording, as {absent} of the training's {world_size} processes"
