"""Reading the YAML files that hold what this member knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_BLANK = re.compile(r"\{(\w+)\}")


def filled(words: str, blanks: Mapping[str, str]) -> str:
    """Return words with their blanks filled; one that is not among the blanks stays as its name.

    >>> filled("{operator} has no kernel", {"operator": "aten::trunc"})
    'aten::trunc has no kernel'
    """
    return _BLANK.sub(lambda blank: blanks.get(blank[1], blank[1]), words)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of this member's own, texts on one line each."""
    # libyaml's loader is ten times as fast, and not in every build of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: list[dict[str, Any]] = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    return rows
