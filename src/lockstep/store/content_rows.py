"""Rows of `schema.CONTENTS`: how they are made, and how their numbers are read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lockstep.core.formulas import Stored
from lockstep.core.records import STATISTICS, Statistics

if TYPE_CHECKING:
    from lockstep.store.encoding import Row

_NAMES = tuple(one.name for one in STATISTICS)
_UNWRITTEN: tuple[Any, ...] = tuple(one.unwritten for one in STATISTICS)
_NORM = _NAMES.index("norm")
_NOTHING = (None,) * len(_NAMES)
_numbers_of = attrgetter(*_NAMES)


def content_row(
    number: int,
    dtype: str,
    shape: Sequence[int],
    device: str,
    digest: str | None = None,
    statistics: Statistics | None = None,
    sketch: bytes | None = None,
    place: Stored | None = None,
    note: str | None = "",
) -> Row:
    """The row of one content; `place` is where its whole tensor is kept."""
    numbers = _NOTHING if statistics is None else _numbers_of(statistics)
    where = (None, None) if place is None else (place.number, place.shard)
    return (number, dtype, list(shape), device, digest, *numbers, sketch, *where, note)


def content_rows(
    named: Sequence[Sequence[object]],
    statistics: Sequence[Sequence[object]],
    kept: Sequence[Sequence[object]],
) -> list[Row]:
    """The same of many contents, column by column.

    named: Numbers, dtypes, shapes, devices and digests.
    statistics: The fields of `Statistics`.
    kept: Sketches, numbers in the shard, and shards.
    """
    return list(zip(*named, *statistics, *kept, [""] * len(named[0]), strict=True))


def statistics_in(values: Sequence[Any]) -> Statistics | None:
    """Statistics of a row, of its columns that hold them; None where none were taken."""
    if values[_NORM] is None:
        return None
    pairs = zip(values, _UNWRITTEN, strict=True)
    return Statistics(*[unwritten if value is None else value for value, unwritten in pairs])


def statistics_named(row: Mapping[str, Any]) -> Statistics | None:
    """The same of a row by names."""
    return statistics_in([row[name] for name in _NAMES])
