"""Whether a report may be written where it is wanted."""

from __future__ import annotations

from pathlib import Path

from lockstep.core.errors import OutputExistsError, UsageError


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
