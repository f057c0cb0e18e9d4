"""Mutations of tables: rewritten as Parquet with values, rows and columns that no writer would write."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from hostile_json import NAMES, hostile, mutated

_INTEGERS = (-1, 0, 1, 2, 63, 10**6, -(2**31), 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 1e308, -1e308, 5e-324)
_SHAPES = (
    [],
    [0],
    [-1],
    [2**62, 4],
    [2**31] * 4,
    [1] * 100,
    [2**63 - 1],
    [7, 7],
    [2**20, 2**20],
    [None],
)
_SKETCHES = (b"", bytes(7), *(one * 256 for one in (bytes(8), b"\0\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf0\x7f",
             b"\xff" * 7 + b"\x7f", b"\xff" * 6 + b"\xef\x7f")))  # fmt: skip
_WORDS = ("forward", "backward", "init", "data", "optimizer", "input", "output", "grad_input", "param", "loss",
          "module", "operator", "gradient", "float32", "float64", "int64", "bool", "bfloat16", "complex64",
          "float8_e4m3fn", "quint8", "meta", "cuda:0")  # fmt: skip
_JSON = ("arguments", "settings")
_ROW_GROUPS = 20_000


def mutate(draw: Random, path: Path) -> tuple[str, bool]:
    """Change one thing of a table; returns what, and whether it means the same."""
    frame = pl.read_parquet(path)
    done, keeps = [], True
    for change in draw.choices(list(_CHANGES), list(_CHANGES.values()), k=draw.choice((1, 1, 2))):
        frame, words, same = (
            change(draw, frame) if frame.height else (frame, "no row is left", True)
        )
        done.append(words)
        keeps = keeps and same
    compression: Any = draw.choice(("zstd", "snappy", "uncompressed", "gzip", "brotli"))
    # A row group costs memory and time to write: some thousands are enough to be too many.
    least = frame.height // _ROW_GROUPS + 1
    group = draw.choice((1, 7, None))
    frame.write_parquet(path, compression=compression, row_group_size=group and max(group, least))
    return ", ".join(done), keeps


Changed = tuple[pl.DataFrame, str, bool]


def _nothing(draw: Random, frame: pl.DataFrame) -> Changed:
    names = frame.columns
    draw.shuffle(names)
    return frame.select(names), "written otherwise", True


def _more(draw: Random, frame: pl.DataFrame) -> Changed:
    name = draw.choice(("new", "file of this row", "", "x" * 5000, "call_id2"))
    value = draw.choice((1, "a", None, [1, 2], 1.5))
    return frame.with_columns(pl.lit(value).alias(name)), f"adds the column {name!r:.30}", True


def _columns(draw: Random, frame: pl.DataFrame) -> Changed:
    name = draw.choice(frame.columns)
    kind = draw.choice((pl.String, pl.Float64, pl.Float32, pl.Int8, pl.UInt64, pl.Boolean, pl.Null, pl.Binary,
                        pl.List(pl.Int64), pl.Datetime, pl.Categorical, None, "rename"))  # fmt: skip
    if kind is None:
        return frame.drop(name), f"drops {name}", False
    if kind == "rename":
        other = draw.choice(frame.columns)
        swapped = {name: other, other: name}
        return frame.rename(swapped) if name != other else frame, f"{name} named {other}", False
    try:
        made = frame[name].cast(kind, strict=False)
    except BaseException:  # polars panics at some casts
        made = pl.Series(name, [None] * frame.height, kind)
    return frame.with_columns(made), f"{name} as {kind}", False


def _values(draw: Random, frame: pl.DataFrame) -> Changed:
    """Put a hostile value, or one of other rows, into some rows."""
    name = draw.choice(frame.columns)
    values, rows = frame[name].to_list(), _rows(draw, frame)
    value = _hostile(draw, name, frame.schema[name], values)
    same_everywhere = draw.random() < 0.5
    for row in rows:
        values[row] = value if same_everywhere else draw.choice(values)
    return _with(frame, name, values), f"{name} of rows {rows[:5]} = {value!r:.60}", False


def _hostile(draw: Random, name: str, kind: pl.DataType, values: list[Any]) -> Any:
    if draw.random() < 0.08:
        return None
    if name in _JSON:
        known = [one for one in values if one not in (None, "{}")]
        return (
            mutated(draw, draw.choice(known))[0] if known and draw.random() < 0.5 else hostile(draw)
        )
    if name == "sketch":
        return draw.choice(_SKETCHES)
    if name == "shape":
        return draw.choice(_SHAPES)
    if kind.is_integer():
        return draw.choice((*_INTEGERS, *draw.choices(values, k=4)))
    if kind.is_float():
        return draw.choice((*_FLOATS, draw.choice(values)))
    if kind == pl.Boolean:
        return draw.random() < 0.5
    return draw.choice((draw.choice(NAMES), draw.choice(_WORDS), draw.choice(values)))


def _relations(draw: Random, frame: pl.DataFrame) -> Changed:
    """Have rows point at each other as they cannot."""
    names = [name for name in ("parent", "call_id", "content", "sequence", "stack", "stored", "shard", "step", "call")
             if name in frame.columns]  # fmt: skip
    if not names:
        return _values(draw, frame)
    name = draw.choice((names[0], draw.choice(names)))
    other = draw.choice(
        [one for one in names if one in ("call_id", "content", "sequence", "stack", *names[:1])]
    )
    shift = draw.choice((0, 0, 1, -1, 2))
    source = frame[other].to_list()
    values, rows = frame[name].to_list(), _rows(draw, frame)
    for row in rows:
        values[row] = source[(row + shift) % len(source)]
    return (
        _with(frame, name, values),
        f"{name} of rows {rows[:5]} = {other} of row {shift:+d}",
        False,
    )


def _row_changes(draw: Random, frame: pl.DataFrame) -> Changed:
    kind = draw.choice(
        ("shuffled", "reversed", "doubled", "one doubled", "dropped", "none", "many", "sorted")
    )
    if kind == "shuffled":
        return frame.sample(fraction=1, shuffle=True, seed=draw.randrange(99)), kind, False
    if kind == "reversed":
        return frame.reverse(), kind, False
    if kind == "sorted":
        return (
            frame.sort(draw.choice([one for one in frame.columns if one != "shape"])),
            kind,
            False,
        )
    if kind in ("doubled", "many"):
        return pl.concat([frame] * (2 if kind == "doubled" else 10)), kind, False
    rows = _rows(draw, frame)
    if kind == "one doubled":
        return pl.concat([frame, frame[rows]]), f"{kind} {rows[:5]}", False
    left = [row for row in range(frame.height) if row not in rows and kind == "dropped"]
    return frame[left], f"rows {rows[:5]} dropped", False


def _chain(draw: Random, frame: pl.DataFrame) -> Changed:
    """Have many rows more, each call within the one before."""
    count = draw.choice((40, 100))
    many = pl.concat([frame] * count)
    for name in ("call_id", "content", "sequence"):
        if name in frame.columns:
            many = many.with_columns(pl.Series(name, range(many.height), pl.Int64))
    if "parent" in frame.columns:
        many = many.with_columns((pl.col("call_id") - 1).alias("parent"))
    return many, f"a chain of {many.height} rows", False


def _rows(draw: Random, frame: pl.DataFrame) -> list[int]:
    if not frame.height:
        return []
    count = draw.choice((1, 1, 2, frame.height // 3 + 1, frame.height))
    return sorted(draw.sample(range(frame.height), min(count, frame.height)))


def _with(frame: pl.DataFrame, name: str, values: list[Any]) -> pl.DataFrame:
    try:
        made = pl.Series(name, values, frame.schema[name])
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        made = pl.Series(name, values, strict=False)
    return frame.with_columns(made)


_CHANGES = {
    _values: 9,
    _relations: 5,
    _row_changes: 3,
    _columns: 2,
    _chain: 1,
    _more: 1,
    _nothing: 1,
}
