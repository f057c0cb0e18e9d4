"""A comparison as a trace for Perfetto, speedscope and chrome://tracing: execution order as time, modules as slices.

The form is the Trace Event Format (Google, 2016): complete events (`X`) that lie within each other, a counter (`C`) and
names (`M`). A pair of tensors takes one microsecond, which is no time that anything took.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from lockstep.core.finding import Comparison
from lockstep.wings.report.comparison_types import Pairs
from lockstep.wings.report.pair_columns import chosen_pairs, pairs_of

LARGEST_PAIRS = 300_000

_TEXTS = ("kind", "role", "tensor", "evidence", "judged_by", "reason", "source")
_NUMBERS = ("margin", "floor", "difference", "tolerance", "cosine", "max_abs")
_COUNTER = "log10 of the difference over its noise floor"

Event = dict[str, Any]
Lane = tuple[int, int]


def write_trace(comparison: Comparison, path: Path) -> None:
    """Write the trace of a comparison; a file that is there already is replaced.

    Raises OSError if the file cannot be written.
    """
    pairs = pairs_of(chosen_pairs(comparison, LARGEST_PAIRS), comparison)
    with path.open("w", encoding="ascii") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(trace_events(pairs)):
            file.write(f"{',' if number else ''}{json.dumps(event, allow_nan=False)}\n")
        file.write("]}\n")


def trace_events(pairs: Pairs) -> Iterator[Event]:
    """All events: a rank is a process, a step a thread, a phase and each module a slice around its pairs."""
    for number, name in enumerate(pairs.rank.names):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    rows = range(len(pairs))
    for lane, of_lane in groupby(
        rows, lambda row: (int(pairs.rank.codes[row]), int(pairs.step[row]))
    ):
        name = f"step {lane[1]}"
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": lane[0],
            "tid": lane[1],
            "args": {"name": name},
        }
        yield from _of_lane(pairs, lane, list(of_lane))


def _of_lane(pairs: Pairs, lane: Lane, rows: list[int]) -> Iterator[Event]:
    opened: list[tuple[str, int]] = []
    for row in rows:
        path = [pairs.phase[row], *filter(None, pairs.module[row].split("."))]
        kept = 0
        while kept < min(len(opened), len(path)) and opened[kept][0] == path[kept]:
            kept += 1
        yield from _closed(opened, kept, row, lane)
        opened.extend((part, row) for part in path[kept:])
        yield from _of_pair(pairs, row, lane)
    yield from _closed(opened, 0, rows[-1] + 1, lane)


def _closed(opened: list[tuple[str, int]], kept: int, end: int, lane: Lane) -> Iterator[Event]:
    """The slices that end here, the innermost one first; those that go on stay."""
    while len(opened) > kept:
        name, start = opened.pop()
        yield _slice(name, start, end - start, lane, "module" if opened else "phase")


def _of_pair(pairs: Pairs, row: int, lane: Lane) -> Iterator[Event]:
    kind = pairs.kind[row]
    shown: Event = {name: getattr(pairs, name)[row] for name in _TEXTS}
    shown |= {name: _number(float(getattr(pairs, name)[row])) for name in _NUMBERS}
    name = f"{pairs.operator[row] or pairs.role[row]} #{pairs.call[row]}"
    yield _slice(name, row, 1, lane, kind) | {"args": {"row": row, **shown}}
    margin = float(pairs.margin[row])
    if 0 < margin < math.inf:
        value = {"beyond": max(0.0, math.log10(margin))}
        yield {"ph": "C", "name": _COUNTER, "pid": lane[0], "ts": row, "args": value}


def _slice(name: str, start: int, length: int, lane: Lane, category: str) -> Event:
    return {
        "ph": "X", "name": name, "cat": category, "ts": start, "dur": length, "pid": lane[0], "tid": lane[1],
    }  # fmt: skip


def _number(value: float) -> float | str | None:
    """A number as JSON has it: none for what is not known, a word for what is infinite."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "infinite"
