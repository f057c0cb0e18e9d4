"""The limits of sizes and counts that a reader checks first, because a recording may be anybody's.

A file beyond a limit ends in one `CorruptError`, like any other that is damaged. The limits are far above what a
recording holds: its manifests have some kilobytes a step, its tables 16 384 rows a chunk.
"""

from __future__ import annotations

import json
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.core.errors import CorruptError
from lockstep.core.known_results import Kind, found_or_computed, key_of_file
from lockstep.core.text import printable
from lockstep.store.parquet import DamagedError, claims_of

MANIFEST_BYTES = 128 << 20
HEADER_BYTES = 100_000_000
"""Of a shard of tensors; as in safetensors itself."""
JSON_VALUES = 4 << 20
"""Values of one JSON text: of a hundred bytes each as Python keeps them."""
JSON_DEPTH = 64
TABLE_ROWS = 1 << 21
TABLE_BYTES = 256 << 20
"""Bytes of a table once it is decompressed, and of the texts in it, each counted as often as it stands there."""
TEXT_BYTES = 4 << 20
"""Bytes of one text in a table."""
CALL_DEPTH = 1000
"""Calls that one call may lie within: as many as Python lets functions lie within each other."""
MOST_ELEMENTS = 1 << 48
"""Of a tensor: more than any memory holds."""
MODULE_DEPTH = 1000
"""Modules that one module may lie within: Python calls fewer from within each other, by two functions a module, of the
2000 that torch's compiler allows."""
CHUNK_ROWS = 1 << 18
CHUNK_BYTES = 64
"""What all chunks of a table hold together: so many rows and one for each byte on disk, `TABLE_BYTES` and so many bytes
for each on disk. Rows take two bytes on disk at least, and few are compressed to a tenth."""

_INTEGER_DIGITS = 20
"""More than any count, seed or address has: longer ones are read as floating-point numbers."""

_ODD = re.compile(r"\\[bfnrtu]|[^\x20-\x7e]")
_OPENING = re.compile(r"[\[{]")


def size_of(path: Path) -> int:
    """Bytes of a file, which must be a file: no link, device or pipe.

    Raises
    ------
    CorruptError
        If it is anything else, or not there.
    """
    try:
        found = path.lstat()
    except OSError as error:
        raise CorruptError(path, f"cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        raise CorruptError(
            path,
            "is not a regular file; a recording holds only regular files",
            advice="copy the recording as it was made",
        )
    return found.st_size


def check_directory(path: Path) -> None:
    """See that a rank's directory is one, and no link to anywhere.

    Raises
    ------
    CorruptError
        If it is anything else.
    """
    if path.is_symlink() or not path.is_dir():
        raise CorruptError(
            path,
            "is not a directory, and in a recording it is one",
            advice="copy the recording as it was made",
        )


def read_manifest(path: Path) -> bytes:
    """The bytes of a manifest.

    Raises
    ------
    CorruptError
        If it cannot be read or is too large to be one.
    """
    size_bytes = size_of(path)
    if size_bytes > MANIFEST_BYTES:
        raise CorruptError(path, f"has {size_bytes} bytes, and a manifest at most {MANIFEST_BYTES}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorruptError(path, f"cannot be read ({error.strerror})") from error


def check_table(path: Path) -> Claims:
    """Compare a table's own figures with the limits.

    Raises
    ------
    CorruptError
        If it is no Parquet file, or too large.
    """
    size = size_of(path)
    try:
        rows, size_bytes = found_or_computed(
            Kind.TABLE_SIZE, key_of_file(path), lambda: claims_of(path)
        )
    except (DamagedError, OSError) as error:
        raise CorruptError(path, f"cannot be read as Parquet ({error})") from error
    if rows > TABLE_ROWS or size_bytes > TABLE_BYTES:
        raise CorruptError(
            path,
            f"claims {rows} rows of {size_bytes} bytes, and a table has at most {TABLE_ROWS} of {TABLE_BYTES}",
        )
    return Claims(rows, size_bytes, size)


@dataclass(frozen=True, slots=True)
class Claims:
    """The sizes that a table claims: rows, their bytes once decompressed, bytes on disk."""

    rows: int = 0
    size_bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Claims) -> Claims:
        return Claims(
            self.rows + other.rows,
            self.size_bytes + other.size_bytes,
            self.disk_bytes + other.disk_bytes,
        )


class Quota:
    """The most that all chunks of each table of a rank may hold."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()
        self._sums: dict[str, Claims] = {}

    def take(self, table: str, path: Path) -> None:
        """Check one more chunk of a table, by itself and with those that were taken before; each once.

        Raises
        ------
        CorruptError
            If it is no Parquet file, or they are too large.
        """
        if path in self._seen:
            return
        claims = check_table(path)
        self._seen.add(path)
        found = self._sums[table] = self._sums.get(table, Claims()) + claims
        if (
            found.rows > CHUNK_ROWS + found.disk_bytes
            or found.size_bytes > TABLE_BYTES + CHUNK_BYTES * found.disk_bytes
        ):
            raise CorruptError(
                path,
                f"the {table} up to here claim {found.rows} rows of {found.size_bytes} bytes, in files of "
                f"{found.disk_bytes} bytes, which no recording has",
            )


def values_of(text: str | bytes) -> Any:
    """The values of a JSON text, its strings printable.

    Raises
    ------
    ValueError
        If it is none, or holds too many values or too deep ones.
    """
    plain = text.decode() if isinstance(text, bytes) else text
    opened = len(_OPENING.findall(plain)) if len(plain) > JSON_DEPTH else 0
    if opened + plain.count(",") > JSON_VALUES:
        raise ValueError(f"more than {JSON_VALUES} values")
    try:
        values = json.loads(plain, parse_int=_integer)
    except RecursionError as error:
        raise ValueError(f"nested more than {JSON_DEPTH} deep") from error
    if opened > JSON_DEPTH or _ODD.search(plain):
        return _checked(values, JSON_DEPTH)
    return values


def _checked(value: Any, depth: int) -> Any:
    """The value with strings that can be printed."""
    if isinstance(value, str):
        return printable(value)
    if not isinstance(value, (list, dict)):
        return value
    if not depth:
        raise ValueError(f"nested more than {JSON_DEPTH} deep")
    if isinstance(value, list):
        return [_checked(item, depth - 1) for item in value]
    return {printable(key): _checked(item, depth - 1) for key, item in value.items()}


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INTEGER_DIGITS else float(digits)
