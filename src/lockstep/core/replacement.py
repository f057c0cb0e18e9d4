"""Write a file so that no reader sees half of it: under a temporary name first, then renamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PART = ".part"
"""How the name of a file ends that is being written."""


def aside_of(path: Path) -> Path:
    """Where a file's new content waits: beside it, so that moving it needs no space; short whatever its name."""
    name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    return path.with_name(f".lockstep-{name}{PART}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to, and move it into place once written.

    Raises
    ------
    OSError
        If the disk or the directory does not take it; a file at `path` stays as it was.
    """
    aside = aside_of(path)
    try:
        with suppress(FileNotFoundError):
            aside.unlink()
        yield aside
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink()
