"""Which process of a command a rank was, in words."""

from __future__ import annotations

import re

from lockstep.core.manifest import RankManifest
from lockstep.core.text import printable

ANY_WORKER = "*"
"""Stands in a lineage for a worker of a pool: which of them does what is left to chance."""

STARTED_BY_MULTIPROCESSING = "from multiprocessing."
"""How the code begins that `multiprocessing` starts a process with."""

_MOST_CHARACTERS = 60
_RANK = re.compile(r"(rank\d+)(-\d+)?")


def rank_number(name: str) -> str:
    """Return the rank that a directory is of: `rank0` of `rank0-2`."""
    found = _RANK.fullmatch(name)
    return found[1] if found else name


def how_started(manifest: RankManifest) -> str:
    """How a process was started, short: `train.py --seed 3`, `sweep.py, child 2`."""
    words = [word for word in manifest.argv[1:] if not word.startswith(STARTED_BY_MULTIPROCESSING)]
    line = printable(" ".join([_last_part(word) for word in words[:1]] + words[1:]))
    if len(line) > _MOST_CHARACTERS:
        line = f"{line[: _MOST_CHARACTERS // 2]}...{line[-_MOST_CHARACTERS // 2 :]}"
    number = manifest.lineage.strip("/").replace("/", ".")
    place = f"child {number}" if number else ""
    if ANY_WORKER in number:
        place = "a worker of a pool"
    return ", ".join(filter(None, (line, place)))


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
