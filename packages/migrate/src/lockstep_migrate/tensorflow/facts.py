"""Facts about TensorFlow's names on the NPU: a row of `names.csv` has a table, a name and its value."""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import lru_cache
from importlib import resources


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, tuple[str, str]]]:
    text = (resources.files(__package__) / "names.csv").read_text(encoding="utf-8")
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for row in csv.DictReader(text.splitlines()):
        found[row["table"]][row["name"]] = (row["first"], row["second"])
    return dict(found)


def names(table: str) -> dict[str, tuple[str, str]]:
    """The names of one table, each with the two words that belong to it; empty where a name has none."""
    return _tables()[table]


SWITCHES = frozenset(names("gpu switch"))
"""Functions that set GPUs up and do nothing else."""

ENVIRONMENT = names("environment")
"""Environment variables: why each needs a look, and what stands for it."""
