"""The limits of sizes and counts that a reader checks first, because a recording may be anybody's.

A file beyond a limit ends in one `CorruptError`, like any other that is damaged. The limits are far above what a
recording holds: its manifests have some kilobytes a step, its tables 16 384 rows a chunk.
"""

from __future__ import annotations

import json
import mmap
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.core.errors import CorruptError
from lockstep.core.known_results import Kind, found_or_computed, key_of_file
from lockstep.core.text import printable

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
    """See that a rank's directory is one, and no link to anywhere. Raises CorruptError if it is anything else."""
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
    """Compare a table's own figures with the limits. Raises CorruptError if it is no Parquet file, or too large."""
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

        Raises CorruptError if it is no Parquet file, or they are too large.
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


# Read the sizes that a Parquet file claims in its footer and page headers, without decompressing a page.
#
# The library that reads tables believes a file: it makes room for as many rows and bytes as a header names. A few
# kilobytes can name gigabytes, so they are counted first. Format: https://parquet.apache.org/docs/file-format/ and,
# for the headers, the compact protocol of Apache Thrift
# (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).

_MAGIC = b"PAR1"
_MOST_FOOTER_BYTES = 1 << 20
_MOST_PAGES = 1 << 14
"""Pages of a file, each column of each group of rows counted as one more: reading so many headers takes a second."""
_MOST_ITEMS = 1 << 20
_MOST_DEPTH = 32

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = frozenset({4, 5, 6})
Struct = dict[int, Any]


class DamagedError(ValueError):
    """A file that is no Parquet file, or a damaged one."""


def claims_of(path: Path) -> tuple[int, int]:
    """Rows of a table and its bytes once decompressed, as the file tells them; of the most rows that any part names.

    Raises DamagedError if the file cannot be one that a reader understands. Raises OSError if it cannot be read.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise DamagedError("it is empty") from error
    with data:
        return _claims(data)


def _claims(data: mmap.mmap) -> tuple[int, int]:
    size = len(data)
    if size < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise DamagedError("it does not begin and end as one")
    length = int.from_bytes(data[size - 8 : size - 4], "little")
    if length > min(size - 12, _MOST_FOOTER_BYTES):
        raise DamagedError(f"a footer of {length} bytes does not fit")
    reader = _Reader(data, size - 8 - length, size - 8)
    footer = reader.struct()
    rows, size_bytes, pages = _count(footer.get(3)), length, _Pages()
    for group in _structs(footer.get(4)):
        rows = max(rows, _count(group.get(3)))
        for column in _structs(group.get(1)):
            values, more = _claims_of_column(data, column.get(3), pages)
            rows, size_bytes = max(rows, values), size_bytes + more
    return rows, size_bytes


class _Pages:
    """Counts the pages of a file."""

    def __init__(self) -> None:
        self._left = _MOST_PAGES

    def one_more(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise DamagedError(f"it is in more than {_MOST_PAGES} pieces")


def _claims_of_column(data: mmap.mmap, column: Any, pages: _Pages) -> tuple[int, int]:
    """Values and decompressed bytes of one column of one group of rows, whose pages lie one behind the other."""
    if not isinstance(column, dict):
        raise DamagedError("a column is described by nothing")
    pages.one_more()
    start = _count(column.get(11)) or _count(column.get(9))
    stop = start + _count(column.get(7))
    if not 4 <= start <= stop <= len(data):
        raise DamagedError("a column lies outside of the file")
    named, values, size_bytes = _count(column.get(5)), 0, 0
    while start < stop:
        pages.one_more()
        reader = _Reader(data, start, stop)
        page = reader.struct()
        for kind in (5, 8):  # data of either version
            if isinstance(page.get(kind), dict):
                values += _count(page[kind].get(1))
        if isinstance(page.get(7), dict):  # a dictionary
            named = max(named, _count(page[7].get(1)))
        size_bytes += _count(page.get(2))
        start = reader.place + _count(page.get(3))
    return max(named, values), size_bytes


def _count(value: Any) -> int:
    """A number that is none below zero; 0 where there is none."""
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise DamagedError("a header holds something that is not a count")
    return value


def _structs(value: Any) -> list[Struct]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DamagedError("a header is malformed")
    return value


class _Reader:
    """Reads values in Thrift's compact protocol, structs as {number of the field: value}."""

    def __init__(self, data: mmap.mmap, start: int, stop: int) -> None:
        self._data, self.place, self._stop = data, start, stop
        self._items = 0

    def struct(self, depth: int = 0) -> Struct:
        """The struct that begins here."""
        if depth > _MOST_DEPTH:
            raise DamagedError("its headers are nested too deep")
        found: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in _INTEGERS:  # most are, and a file has thousands
                self._take_item()
                found[number] = self._integer()
            elif kind in (_TRUE, _FALSE):
                found[number] = kind == _TRUE
            else:
                found[number] = self._value(kind, depth)
        return found

    def _take_item(self) -> None:
        self._items += 1
        if self._items > _MOST_ITEMS:
            raise DamagedError("its headers hold too much")

    def _value(self, kind: int, depth: int) -> Any:
        self._take_item()
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            return self._skip(self._unsigned())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth + 1)
        if kind in (_BYTE, _TRUE, _FALSE):
            return self._byte()
        if kind == _DOUBLE:
            return self._skip(8)
        raise DamagedError(f"a header holds a value of the unknown kind {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if depth > _MOST_DEPTH or count > _MOST_ITEMS:
            raise DamagedError("its headers hold too much")
        return [self._value(head & 15, depth) for _ in range(count)]

    def _integer(self) -> int:
        place = self.place
        found = self._data[place] if place < self._stop else 128
        if found < 128:
            self.place = place + 1
        else:
            found = self._unsigned()
        return (found >> 1) ^ -(found & 1)

    def _unsigned(self) -> int:
        found = self._byte()
        if found < 128:
            return found
        found &= 127
        for shift in range(7, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise DamagedError("a header holds an endless number")

    def _byte(self) -> int:
        place = self.place
        if place >= self._stop:
            raise DamagedError("a header is cut off")
        self.place = place + 1
        return self._data[place]

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > self._stop:
            raise DamagedError("a header is cut off")
