"""Rows of a table as the bytes of a Parquet file."""

from __future__ import annotations

import io
from typing import Any

import polars as pl

from lockstep.core.text import printable

Row = tuple[Any, ...]


def parquet_bytes(table: pl.Schema, rows: list[Row]) -> bytes:
    """Encode rows of one table; in memory, so that a full disk shows as `OSError` like everywhere else."""
    columns = zip(*rows, strict=True) if rows else [()] * len(table)
    frame = pl.DataFrame(
        [
            _series(name, values, dtype)
            for (name, dtype), values in zip(table.items(), columns, strict=True)
        ]
    )
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()


def _series(name: str, values: tuple[Any, ...], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.List):
        return _lists(name, values, dtype)
    try:
        return pl.Series(name, values, dtype)
    except UnicodeEncodeError:
        return pl.Series(name, [printable(value) for value in values], dtype)


def _lists(name: str, values: tuple[Any, ...], dtype: pl.DataType) -> pl.Series:
    """A column of lists, each distinct one made once: shapes are few, and polars makes a series of every list."""
    places: dict[tuple[Any, ...], int] = {}
    numbers = [places.setdefault(tuple(value), len(places)) for value in values]
    return pl.Series(name, list(map(list, places)), dtype).gather(numbers)
