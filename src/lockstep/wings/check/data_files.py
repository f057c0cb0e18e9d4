"""Reading the YAML files that hold what this wing knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of this wing's own, texts on one line each."""
    # libyaml's loader is ten times as fast, and not in every build of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: list[dict[str, Any]] = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    return rows
