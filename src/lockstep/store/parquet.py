"""Read the sizes that a Parquet file claims in its footer and page headers, without decompressing a page.

The library that reads tables believes a file: it makes room for as many rows and bytes as a header names. A few
kilobytes can name gigabytes, so they are counted first. Format: https://parquet.apache.org/docs/file-format/ and, for
the headers, the compact protocol of Apache Thrift
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

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

    Raises
    ------
    DamagedError
        If the file cannot be one that a reader understands.
    OSError
        If it cannot be read.
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
        while True:
            head = self._byte()
            if not head:
                return found
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        self._items += 1
        if self._items > _MOST_ITEMS:
            raise DamagedError("its headers hold too much")
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
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)

    def _unsigned(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise DamagedError("a header holds an endless number")

    def _byte(self) -> int:
        if self.place >= self._stop:
            raise DamagedError("a header is cut off")
        self.place += 1
        return self._data[self.place - 1]

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > self._stop:
            raise DamagedError("a header is cut off")
