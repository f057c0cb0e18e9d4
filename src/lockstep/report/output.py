"""Writing a report file: aside first, then renamed, so that nobody ever reads half of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.core.errors import OutputExistsError, UsageError


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


def check_output_file(path: Path, *, force: bool) -> None:
    """Check that a report may be written here.

    Raises
    ------
    OutputExistsError
        If the file is there and `force` is not given.
    UsageError
        If its directory does not exist.
    """
    if path.exists() and not force:
        raise OutputExistsError(
            f"{path}: exists already; give another name, or --force to replace it"
        )
    if path.is_dir():
        raise OutputExistsError(f"{path}: is a directory; give a file name")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: its directory does not exist; make it first")
