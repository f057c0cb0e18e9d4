"""Small contents, measured many at a time: the numbers of each are those of each alone."""

from __future__ import annotations

import dataclasses
import io
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.records import Statistics
from lockstep.core.sketch import SKETCH_SIZE, exact_sketch
from lockstep.kernels.numbers import numbers_of_array, numbers_of_each
from lockstep.store import schema
from lockstep.store.encoding import parquet_bytes
from lockstep.store.small_tensors import SmallContent, measured
from lockstep.store.tensor_files import TensorFiles
from lockstep.store.writer import RankWriter

SPECIAL = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e-45, 3e38]
ARRAYS = st.lists(
    st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), max_size=40), min_size=1, max_size=12
)
DTYPES = ("float32", "float64", "bfloat16")


def array_of(values: list[float], dtype: str) -> Any:
    if dtype == "bfloat16":
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.array(values, dtype)


def widened(array: Any) -> Any:
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def small(
    number: int, array: Any, dtype: str, *, with_sketch: bool = True, is_kept: bool = False
) -> SmallContent:
    shape, digest = (array.size,), f"digest-{number}"
    return (number, dtype, shape, "cpu", digest, array.tobytes(), with_sketch, is_kept)


def bits(value: float | str | None) -> bytes:
    return (
        repr(value).encode()
        if value is None or isinstance(value, str)
        else struct.pack("<d", value)
    )


@given(lists=ARRAYS, dtype=st.sampled_from(DTYPES))
def test_each_of_many_arrays_has_the_numbers_that_it_has_alone(
    lists: list[list[float]], dtype: str
) -> None:
    # given arrays behind each other, with NaN, infinities and both zeros
    arrays = [array_of(values, dtype) for values in lists]

    # when all are measured in one call
    found, sketches = numbers_of_each(
        np.concatenate(arrays), [array.size for array in arrays], with_sketch=True
    )

    # then to the last bit with the numbers of each alone, and the sketch is the array
    each = [Statistics(*row) for row in zip(*found, strict=True)]
    for array, statistics, sketch in zip(arrays, each, sketches, strict=True):
        alone, own_sketch = numbers_of_array(array, with_sketch=True)
        assert list(map(bits, dataclasses.astuple(statistics))) == list(
            map(bits, dataclasses.astuple(alone))
        )
        assert sketch.tobytes() == own_sketch.tobytes()
        finite = np.nan_to_num(widened(array).astype(np.float64), nan=0, posinf=0, neginf=0)
        assert np.array_equal(sketch, exact_sketch(finite))
        # and they are right
        kept = widened(array).astype(np.float64)
        kept = kept[np.isfinite(kept)]
        assert statistics.nan_count == np.isnan(widened(array)).sum()
        assert statistics.zero_count == (kept == 0).sum()
        if kept.size:
            assert (statistics.minimum, statistics.maximum) == (kept.min(), kept.max())
            assert statistics.mean == pytest.approx(kept.mean(), rel=1e-9, abs=1e-300)
            assert statistics.norm == pytest.approx(math.sqrt((kept * kept).sum()))


def test_rows_of_several_dtypes_keep_their_numbers() -> None:
    # given contents whose dtypes and sketches alternate
    contents = [
        small(number, array_of([number, -1.0], dtype), dtype, with_sketch=number % 2 == 0)
        for number, dtype in enumerate(DTYPES * 3)
    ]

    # when they are measured
    rows = {row[0]: row for row in measured(contents, 0)}

    # then each row is the content's own
    names = list(schema.CONTENTS)
    assert sorted(rows) == list(range(9))
    for number, dtype in enumerate(DTYPES * 3):
        row = dict(zip(names, rows[number], strict=True))
        assert (row["dtype"], row["maximum"], row["minimum"]) == (dtype, float(number), -1.0)
        assert (row["sketch"] is None) == (number % 2 == 1)
        assert row["digest"] == f"digest-{number}"


def test_shapes_that_come_again_stand_in_each_row() -> None:
    # given rows whose shapes come again, as tuples and as lists, none at all among them
    shapes: list[Any] = [(4,), [4], (), (2, 3), (4,), (3, 2), []]
    table = pl.Schema({"number": pl.Int64(), "shape": pl.List(pl.Int64())})

    # when they are written
    rows = list(enumerate(shapes))
    read, none = (pl.read_parquet(io.BytesIO(parquet_bytes(table, part))) for part in (rows, []))

    # then each row has its own
    assert read["shape"].to_list() == list(map(list, shapes))
    assert (read.schema, none.schema, len(none)) == (table, table, 0)


def test_a_writer_keeps_contents_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    # given contents that wait to be measured between others that do not
    writer = RankWriter(tmp_path)
    for number in range(6):
        content = small(number, array_of([1.0] * SKETCH_SIZE, "float32"), "float32")
        if number % 2:
            writer.add_small_content(content)
        else:
            writer.add_content(measured([content], 0)[0])

    # when they are written
    writer.close()

    # then they stand in one table, in order
    table = pl.read_parquet(tmp_path / schema.chunk_name("contents", 0))
    assert table["content"].to_list() == list(range(6))
    assert table["maximum"].to_list() == [1.0] * 6


def test_contents_kept_whole_come_back_with_their_bits(tmp_path: Path) -> None:
    # given small contents of every dtype in two chunks, every other one to be kept whole
    writer = RankWriter(tmp_path)
    arrays = [array_of(SPECIAL[number:], dtype) for dtype in DTYPES for number in range(6)]
    shards = {}
    for number, array in enumerate(arrays):
        name = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
        content = small(number, array, name, is_kept=number % 2 == 0)
        shards[number] = writer.add_small_content(content)
        if number == len(arrays) // 2:
            writer.flush()

    # when they are written
    writer.close()

    # then their rows say where they are, and nothing is stored of the others
    paths = sorted(tmp_path.glob("contents-*.parquet"))
    rows = pl.concat(map(pl.read_parquet, paths)).rows(named=True)
    assert set(shards.values()) == {0, 1}
    assert len(rows) == len(arrays)
    files = TensorFiles(tmp_path)
    for row, array in zip(rows, arrays, strict=True):
        number = row["content"]
        if number % 2:
            assert (row["stored"], row["shard"]) == (None, None)
            continue
        assert (row["stored"], row["shard"]) == (number, shards[number])
        assert files.load(shards[number], number).tobytes() == widened(array).tobytes()
