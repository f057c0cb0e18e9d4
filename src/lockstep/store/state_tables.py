"""Tables of states and of later losses: as rows to be written, and as typed records again."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import polars as pl
import xxhash

from lockstep.core.errors import CorruptError
from lockstep.core.records import Content, Sketch
from lockstep.core.site import Role
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.core.states import HeldSetting, LaterLoss, Moment, Standing, StateRecord
from lockstep.store.content_rows import statistics_named
from lockstep.store.limits import MOST_ELEMENTS, values_of

_ROLES = frozenset({Role.PARAM, Role.BUFFER, Role.STATE})
_moment, _role, _standing = lru_cache(Moment), lru_cache(Role), lru_cache(Standing)


def states_in(path: Path, table: pl.DataFrame, *, with_sketches: bool) -> Iterator[StateRecord]:
    """The states of a table that was read, those of one moment and name once.

    Raises CorruptError if a row makes no sense.
    """
    sketches: dict[tuple[str | None, str], bytes] = {}
    seen: set[tuple[Moment, Role, str]] = set()
    for number, row in enumerate(table.iter_rows(named=True)):
        try:
            moment, role = _moment(row["moment"]), _role(row["role"])
            standing = _standing(row["standing"])
        except ValueError as error:
            raise CorruptError(path, f"row {number} is malformed ({error})") from error
        key = (moment, role, row["name"])
        if role not in _ROLES or key in seen:
            raise CorruptError(path, f"row {number} is malformed: {role.value} {row['name']!r:.80}")
        seen.add(key)
        if row["sketch"] is not None:
            if len(row["sketch"]) != 8 * SKETCH_SIZE:
                raise CorruptError(path, f"the sketch of row {number} has a wrong length")
            sketches[row["digest"], row["dtype"]] = row["sketch"]
        sketch = sketches.get((row["digest"], row["dtype"])) if with_sketches else None
        content = _content(path, number, row, sketch)
        yield StateRecord(
            moment,
            row["step"],
            row["module"],
            row["name"],
            role,
            standing,
            row["trainable"],
            content,
        )


def _content(path: Path, number: int, row: dict[str, Any], sketch: bytes | None) -> Content:
    extents: list[int | None] = row["shape"]
    shape = tuple(extent for extent in extents if extent is not None and extent >= 0)
    if len(shape) < len(extents) or math.prod(shape) > MOST_ELEMENTS:
        raise CorruptError(path, f"row {number} has an impossible shape {tuple(extents)}")
    return Content(
        number,
        sys.intern(row["dtype"]),
        shape,
        sys.intern(row["device"]),
        row["digest"],
        statistics_named(row),
        None if sketch is None else _kept(sketch),
        row["note"] or "",
    )


class _Sketch:
    """A sketch as it was read."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __call__(self) -> Sketch:
        """The sketch, float64 of shape (SKETCH_SIZE,)."""
        return np.frombuffer(self.data, dtype="<f8")


_sketches: WeakValueDictionary[bytes, _Sketch] = WeakValueDictionary()
"""Sketches that somebody holds, by their digest: ranks that hold the same parameters share them."""


def _kept(data: bytes) -> _Sketch:
    """A sketch, once for all states that have it."""
    key = xxhash.xxh3_128_digest(data)
    known = _sketches.get(key)
    if known is None or known.data != data:
        known = _sketches[key] = _Sketch(data)
    return known


def held_settings_in(path: Path, table: pl.DataFrame) -> Iterator[HeldSetting]:
    """The settings of a table that was read. Raises CorruptError if a value is no number, mode or text."""
    for number, (name, text, moves) in enumerate(table.iter_rows()):
        try:
            value = values_of(text)
        except ValueError as error:
            raise CorruptError(path, f"row {number} is malformed ({error})") from error
        if isinstance(value, (list, dict)):
            raise CorruptError(path, f"row {number} holds several values")
        yield HeldSetting(name, value, moves)


def losses_in(table: pl.DataFrame) -> tuple[LaterLoss, ...]:
    """The losses of a table that was read, in order of time."""
    columns = (table[name].to_list() for name in ("step", "value", "dtype"))
    return tuple(
        LaterLoss(step, value, sys.intern(dtype))
        for step, value, dtype in zip(*columns, strict=True)
    )
