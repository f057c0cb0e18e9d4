"""Compare the files of a version on several machines."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lockstep.errors import UsageError

_BLOCK_BYTES = 1 << 20


def contents_of(path: Path) -> dict[str, str]:
    """A checksum of a file, or of each file of a folder, by its name there; not of what Python keeps beside.

    Raises UsageError if it is not there.
    """
    if not path.exists():
        raise UsageError(f"{path}: is not there; every node needs the models at the same path")
    files = [path] if path.is_file() else [one for one in path.rglob("*") if _counts(one)]
    return {str(one.relative_to(path)): _checksum(one) for one in files}


def refuse_other(path: Path, contents: dict[str, str]) -> None:
    """Refuse a version that does not hold what it holds elsewhere; a file more does not matter.

    Raises UsageError if a file is missing, or another.
    """
    found = contents_of(path)
    for name, checksum in contents.items():
        if found.get(name) != checksum:
            what = "holds something other than" if name in found else "is not there, as it is"
            raise UsageError(f"{path / name}: {what} where the server was begun; copy it there")


def _counts(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _checksum(file: Path) -> str:
    told = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            told.update(block)
    return told.hexdigest()
