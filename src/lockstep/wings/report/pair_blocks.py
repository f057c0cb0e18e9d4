"""The page's blocks for one pair: statistics, pictures of both tensors and their difference, stack."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.core.records import HEADINGS
from lockstep.report.page import Code, Grid, HeatMap, Histogram, Note, Points, Sentences, Stack
from lockstep.report.page.island import trimmed
from lockstep.report.page.page import Block
from lockstep.wings.report.comparison_types import (
    ComparisonData,
    Detail,
    Excerpt,
    SideNumbers,
    UlpCounts,
    WorstElement,
)


def blocks_of(detail: Detail, data: ComparisonData) -> tuple[Block, ...]:
    """All blocks of one pair, from top to bottom."""
    return tuple(_blocks(detail, data))


def excerpt_code(where: str, excerpt: Excerpt, note: str = "") -> Code:
    """Lines of a source file, with the one that `where` (`file:line`) names standing out."""
    line = where.rpartition(":")[2]
    lines = tuple(enumerate(excerpt.lines, excerpt.first))
    return Code(where, lines, (int(line),) if line.isdigit() else (), note)


def _blocks(detail: Detail, data: ComparisonData) -> Iterator[Block]:
    if detail.reference is not None or detail.candidate is not None:
        yield _side_by_side(detail.reference, detail.candidate)
    if detail.histogram is not None:
        found = detail.histogram
        counts = (found.reference.astype(np.float64), found.candidate.astype(np.float64))
        yield Histogram("Values of both", trimmed(found.edges), *counts)
    if detail.heat_map is not None:
        picture = detail.heat_map
        rows, columns = picture.values.shape
        about = f"rows: {picture.row_label}; columns: {picture.column_label}"
        yield HeatMap(
            "Where the error sits", rows, columns, trimmed(picture.values.ravel(), 8), about
        )
    if detail.pattern is not None and detail.pattern.sentence:
        sentence = detail.pattern.sentence
        yield Note(sentence[:1].upper() + sentence[1:])
    if detail.ulp is not None:
        yield _ulp(detail.ulp)
    if detail.quantiles is not None:
        found_quantiles = detail.quantiles
        yield Points(
            "Error against rounding of the same dtype", trimmed(found_quantiles.theoretical),
            trimmed(found_quantiles.error), "rounding, ulp", "error, ulp",
        )  # fmt: skip
    if detail.worst:
        titles = ("index", "reference", "candidate", "difference", "ulp")
        yield Grid(titles, [_worst(one) for one in detail.worst], "Worst elements")
    if detail.stack:
        frames = [(f"{one.file}:{one.line}", one.function, one.is_library) for one in detail.stack]
        kept = {where: data.sources[where] for where, _, _ in frames if where in data.sources}
        yield Stack(
            frames, excerpts={where: excerpt_code(where, one) for where, one in kept.items()}
        )
    if detail.without:
        yield Sentences((detail.without,), "No pictures")


def _side_by_side(reference: SideNumbers | None, candidate: SideNumbers | None) -> Grid:
    rows = [(heading, *_both(name, reference, candidate)) for name, heading in _ROWS.items()]
    rows = [row for row in rows if row[0] in _ALWAYS or set(row[1:3]) - {0, "", NOT_THERE}]
    both = reference is not None and candidate is not None
    off = [number for number, row in enumerate(rows) if both and row[1] != row[2]]
    return Grid(("", "reference", "candidate", "difference"), rows, standing_out=off)


Cell = str | float | int

NOT_THERE = "–"
_TEXTS = ("shape", "dtype", "layout")
_ROWS = {"norm": "norm", "mean": "mean", **HEADINGS, **dict(zip(_TEXTS, _TEXTS, strict=True))}
_ALWAYS = ("norm", "mean", "min", "max")


def _both(
    name: str, reference: SideNumbers | None, candidate: SideNumbers | None
) -> tuple[Cell, Cell, Cell]:
    sides = (None if one is None else one.of(name) for one in (reference, candidate))
    first, second = (NOT_THERE if one is None else one for one in sides)
    if name in _TEXTS:
        texts = [str(list(one)) if isinstance(one, tuple) else str(one) for one in (first, second)]
        same = texts[0] == texts[1] or NOT_THERE in texts
        return texts[0], texts[1], "" if same else "differs"
    if isinstance(first, str) or isinstance(second, str):
        return first, second, NOT_THERE
    return first, second, second - first


def _ulp(found: UlpCounts) -> Histogram:
    count = len(found.counts)
    labels = ["0" if one == 0 else "1" if one == 1 else f"from 2^{one - 1}" for one in range(count)]
    edges = np.arange(count + 1, dtype=np.float64)
    return Histogram("Error in ulp", edges, found.counts.astype(np.float64), labels=labels)


def _worst(element: WorstElement) -> tuple[str, Cell, Cell, float, float]:
    index = ", ".join(map(str, element.index))
    return (
        index,
        _value(element.reference),
        _value(element.candidate),
        element.difference,
        element.ulp,
    )


def _value(value: complex | float | int) -> Cell:
    return f"{value:.4g}" if isinstance(value, complex) else value
