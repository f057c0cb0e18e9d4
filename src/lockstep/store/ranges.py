"""Check that the numbers of a table can be places, counts and a tree, whoever wrote them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from lockstep.core.errors import CorruptError
from lockstep.core.records import STATISTICS
from lockstep.store.limits import CALL_DEPTH, MODULE_DEPTH, TABLE_BYTES, TEXT_BYTES

_LEAST = {
    "call_id": 0,
    "step": 0,
    "call": 0,
    "parent": -1,
    "sequence": 0,
    "index": 0,
    "occurrence": 0,
    "content": 0,
    "random_state": -1,
    "stored": 0,
    "shard": 0,
    "parameters": 0,
    **{one.name: one.least for one in STATISTICS if one.least is not None},
}


def check_numbers(path: Path, frame: pl.DataFrame) -> None:
    """Compare the numbers of a table with their possible ranges; a call is within one that began before it.

    Raises
    ------
    CorruptError
        If one is too small; the message names the file and the column.
    """
    names = [name for name in _LEAST if name in frame.columns]
    if not names or not frame.height:
        return
    smallest = frame.select(pl.col(names).min()).row(0)
    for name, found in zip(names, smallest, strict=True):
        if found is not None and found < _LEAST[name]:
            raise CorruptError(
                path,
                f"the column {name!r} holds {found}, and nothing below {_LEAST[name]} can stand there",
            )
    if {"parent", "call_id"} <= set(names) and (frame["parent"] >= frame["call_id"]).any():
        raise CorruptError(path, "a call lies within one that came after it, or within itself")


def check_modules(path: Path, frame: pl.DataFrame) -> None:
    """See that no module lies deeper than one that can be called.

    Raises
    ------
    CorruptError
        If one does.
    """
    if "module" not in frame.columns or not frame.height:
        return
    depth = frame["module"].str.count_matches(".", literal=True).max()
    if isinstance(depth, int) and depth > MODULE_DEPTH:
        raise CorruptError(
            path, f"a module lies within {depth} others, and a model has at most {MODULE_DEPTH}"
        )


def check_texts(path: Path, frame: pl.DataFrame) -> None:
    """Hold the lengths of texts and sketches against the limits: a file of some bytes can name one in each of its rows.

    Raises
    ------
    CorruptError
        If one is too long, or all together are.
    """
    lengths = [
        *(pl.col(name).str.len_bytes() for name, kind in frame.schema.items() if kind == pl.String),
        *(pl.col(name).bin.size() for name, kind in frame.schema.items() if kind == pl.Binary),
    ]
    if not lengths or not frame.height:
        return
    longest = frame.select(one.max() for one in lengths).row(0)
    total = frame.select(one.sum() for one in lengths).row(0)
    if max(one or 0 for one in longest) > TEXT_BYTES or sum(total) > TABLE_BYTES:
        raise CorruptError(
            path,
            f"holds texts of {sum(total)} bytes, the longest of {max(one or 0 for one in longest)}, and a "
            f"table has at most {TABLE_BYTES} and {TEXT_BYTES}",
        )


def check_tree(path: Path, call_ids: npt.NDArray[np.int64], parents: npt.NDArray[np.int64]) -> None:
    """See that no two calls of a rank have one number, and that none lies deeper than modules do.

    Raises
    ------
    CorruptError
        If one does.
    """
    order = np.argsort(call_ids, kind="stable")
    ordered = call_ids[order]
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.size:
        raise CorruptError(path, f"two calls have the number {again[0]}")
    if not ordered.size:
        return
    around = parents[order]
    at = np.minimum(np.searchsorted(ordered, around), ordered.size - 1)
    row_of_parent = np.where(ordered[at] == around, at, -1)
    above = row_of_parent
    for _ in range(CALL_DEPTH):
        above = row_of_parent[above[above >= 0]]
        if not above.size:
            return
    raise CorruptError(path, f"a call lies within more than {CALL_DEPTH} others")
