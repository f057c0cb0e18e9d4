"""Writing a report file: aside first, then renamed, so that nobody ever reads half of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to, and move it into place once written.

    Raises
    ------
    OSError
        If the disk or the directory does not take it; what lay at `path` stays as it was.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        yield aside
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
