"""What a version holds, told by one number: it lies on several machines, and may be exchanged on one of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lockstep.core.errors import UsageError

_BLOCK_BYTES = 1 << 20


def contents_of(path: Path) -> str:
    """A checksum of a file, or of all files of a folder with their names; not of what Python keeps there.

    Raises
    ------
    UsageError
        If it is not there.
    """
    if not path.exists():
        raise UsageError(f"{path}: is not there; every node needs the models at the same path")
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if _counts(one))
    told = hashlib.sha256()
    for file in files:
        told.update(f"{file.relative_to(path)} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                told.update(block)
    return told.hexdigest()


def _counts(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
