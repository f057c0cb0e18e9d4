"""The lists of `name_lists.txt`: functions, parameters and packages by what they do with a text or a device."""

from __future__ import annotations

import functools
from importlib import resources


def listed_names(kind: str) -> frozenset[str]:
    """Return the names of a kind; KeyError if there is no such kind."""
    return _lists()[kind]


@functools.cache
def _lists() -> dict[str, frozenset[str]]:
    """Each list starts with a line `KIND (WHAT):`; its names stand in the indented lines after it."""
    found: dict[str, frozenset[str]] = {}
    kind = ""
    text = resources.files(__package__).joinpath("name_lists.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("  "):
            found[kind] = found.get(kind, frozenset()).union(line.split())
        else:
            kind = line.partition(" (")[0]
    return found
