"""The first sheet of a workbook: the answer in the words of the terminal, and every origin as a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.core.finding import Comparison, Origin, Verdict
from lockstep.report.comparison.lone_calls import unaligned_sentences
from lockstep.report.comparison.screen import headline
from lockstep.report.csv_tables import Cell
from lockstep.report.workbook import write_row

ORIGIN_TITLES = (
    "Origin", "Kind", "Step", "Phase", "Module", "Operator", "Tensor", "Source", "Difference", "Margin", "Cosine",
    "MaxAbsErr", "Rank", "Judged By", "Reason",
)  # fmt: skip

_WIDTHS = (26, 22, 14, 10, 32, 32, 24, 28, 12, 12, 12, 12, 8, 14, 100)
_COLOURS = {Verdict.AGREE: "#00803C", Verdict.DIVERGED: "#C00000", Verdict.INCOMPARABLE: "#B07000"}
_NUMBERS = {"Step": "0", "Origin": "0", "Cosine": "0.0000000"}


def write_verdict_sheet(workbook: Any, comparison: Comparison) -> None:
    """Write the verdict, its counts, origins and context, each a block with a bold title."""
    sheet = workbook.add_worksheet("Verdict")
    for column, width in enumerate(_WIDTHS):
        sheet.set_column(column, column, width)
    verdict = comparison.verdict
    colour = _COLOURS[Verdict.INCOMPARABLE if comparison.other_precision_alone else verdict]
    plain, bold = workbook.add_format(), workbook.add_format({"bold": True, "bottom": 1})
    top = workbook.add_format({"bold": True, "font_size": 14, "font_color": colour})
    numbers = tuple(
        workbook.add_format({"num_format": _NUMBERS.get(title, "0.000E+00")})
        for title in ORIGIN_TITLES
    )
    write_row(sheet, 0, (headline(comparison),), top)
    line = 1
    for title, rows in _blocks(comparison):
        if not rows:
            continue
        write_row(sheet, line + 1, title, bold)
        looks: Any = numbers if title is ORIGIN_TITLES else plain
        for number, row in enumerate(rows, start=line + 2):
            write_row(sheet, number, row, looks)
        line += 2 + len(rows)


def _blocks(comparison: Comparison) -> Iterator[tuple[Sequence[str], list[Sequence[Cell]]]]:
    yield (
        ("Recordings",),
        [
            ("reference", comparison.reference),
            ("candidate", comparison.candidate),
            ("judged by", comparison.judged_by),
        ],
    )
    yield ORIGIN_TITLES, [_cells(n, one) for n, one in enumerate(comparison.origins, start=1)]
    yield (
        ("Tensors",),
        [
            ("compared", comparison.compared),
            ("inherited", comparison.inherited),
            ("missing on one side", comparison.missing),
            ("calls of the reference only", comparison.unaligned_reference),
            ("calls of the candidate only", comparison.unaligned_candidate),
        ],
    )
    yield (
        ("Uniform precision change", "Sites"),
        [(one.name, len(one.members)) for one in comparison.uniform],
    )
    yield (
        ("Set-up", "Reference", "Candidate"),
        [(one.name, one.reference, one.candidate) for one in comparison.setup],
    )
    for name, sentences in (
        ("Calls without partner", unaligned_sentences(comparison)),
        ("Not compared", comparison.not_compared),
        ("Events", [f"step {one.step}: {one.kind}: {one.detail}" for one in comparison.events]),
        ("Notes", comparison.notes),
    ):
        yield (name,), [(sentence,) for sentence in sentences]


def _cells(number: int, origin: Origin) -> Sequence[Cell]:
    finding = origin.finding
    return (
        number, origin.kind.value, origin.step, origin.phase.value, origin.module, origin.op, origin.tensor,
        origin.source, _known(finding.difference), _known(finding.margin), _known(finding.metrics.cosine),
        _known(finding.metrics.max_abs), origin.rank, finding.judged_by, origin.reason,
    )  # fmt: skip


def _known(value: float) -> Cell:
    return None if math.isnan(value) else value
