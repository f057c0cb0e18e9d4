"""Files and directories that only their owner can read; the mask of the process, which is the training's, stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

_FILE = 0o600
_DIRECTORY = 0o700


def make_private_directory(path: Path, *, exist_ok: bool = False) -> None:
    """Make a directory, and those above it as they are made elsewhere; one that is there stays as it is.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    path.mkdir(_DIRECTORY, parents=True, exist_ok=exist_ok)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file to write to.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    encoding = None if "b" in mode else "utf-8"
    return open(path, mode, encoding=encoding, opener=_opened)


def write_private(path: Path, text: str) -> None:
    """Write a file of text.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    with open_private(path, "w") as file:
        file.write(text)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE)
