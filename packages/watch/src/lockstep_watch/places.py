"""Where events and a command's output go."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any


def path_of_events(given: Path | None) -> Path:
    """The event file: as given, or a name of this second that is free here."""
    if given is not None:
        return given
    stem = time.strftime("watch-%Y%m%d-%H%M%S")
    path, number = Path(f"{stem}.jsonl"), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}.jsonl")
    return path


def own_streams(*, as_json: bool) -> dict[str, Any]:
    """Where the command's output goes: not among JSON."""
    return {"stdout": sys.stderr} if as_json else {}
