"""How a place of the script is called."""

from __future__ import annotations

import os
from pathlib import Path


def short_place(place: str) -> str:
    """`file:line` from the folder that this runs in, where it lies below that."""
    file, colon, line = place.rpartition(":")
    if not (colon and line.isdigit() and Path(file).is_absolute()):
        return place
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{line}"
