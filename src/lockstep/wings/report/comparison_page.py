"""The page of a comparison: the answer, where the runs part and how it spreads, every pair, and one of them closely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from lockstep.core.finding import Comparison, Evidence
from lockstep.core.finding import Kind as FindingKind
from lockstep.core.text import spans
from lockstep.report.comparison.kinds import EQUAL, IN_TOLERANCE, KINDS
from lockstep.report.comparison.pairs import EVIDENCE_WORDS
from lockstep.report.page import (
    Card,
    Columns,
    Command,
    Commands,
    Metric,
    Page,
    Rows,
    Scatter,
    Selected,
    Sentences,
    Strip,
    Subject,
    Table,
    TableColumn,
    Tree,
    Work,
    write_page,
)  # fmt: skip
from lockstep.report.page import TextColumn as PageText
from lockstep.report.page.areas import words_alone
from lockstep.report.page.island import trimmed
from lockstep.report.page.page import Column
from lockstep.store.reader import open_recording
from lockstep.wings.report import comparison_types as types
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.comparison_types import ComparisonData, TextColumn
from lockstep.wings.report.pair_blocks import blocks_of
from lockstep.wings.report.verdict_area import verdict_of

METRICS = (
    Metric("margin", "× noise floor"),
    Metric("rel_l2", "relative error"),
    Metric("cosine", "1 − cosine", falling=True),
    Metric("max_abs", "max abs error"),
    Metric("max_ulp", "max ulp"),
    Metric("difference", "difference"),
)

_NUMBERS = (
    ("max abs", "max_abs"), ("max ulp", "max_ulp"), ("difference", "difference"), ("tolerance", "tolerance"),
    ("noise floor", "floor"), ("call", "call"), ("index", "index"),
    ("ref norm", "reference_norm"), ("ref mean", "reference_mean"), ("ref min", "reference_minimum"),
    ("ref max", "reference_maximum"), ("cand norm", "candidate_norm"), ("cand mean", "candidate_mean"),
    ("cand min", "candidate_minimum"), ("cand max", "candidate_maximum"),
)  # fmt: skip
_TEXTS = (
    ("rank", "rank"), ("phase", "phase"), ("operator", "operator"), ("tensor", "tensor"),
    ("ref dtype", "reference_dtype"), ("cand dtype", "candidate_dtype"), ("ref shape", "reference_shape"),
    ("cand shape", "candidate_shape"), ("outcome", "outcome"), ("evidence", "evidence"),
    ("judged by", "judged_by"), ("reason", "reason"), ("source", "source"),
)  # fmt: skip

TABLE = (
    TableColumn("kind", "kind", "kind"),
    TableColumn("when", "step", "when"),
    TableColumn("module / operator", "module", "site"),
    TableColumn("role", "role"),
    TableColumn("× noise floor", "margin", "bar"),
    TableColumn("rel error", "rel_l2", "number"),
    TableColumn("cosine", "cosine", "number"),
    *(TableColumn(title, column, "number", shown=False) for title, column in _NUMBERS),
    *(TableColumn(title, column, "text", shown=False) for title, column in _TEXTS),
)
"""The columns that the table may show, those at first that answer where and how far."""


def comparison_page(data: ComparisonData) -> Page:
    """Compose the page of what a comparison found; `lockstep.report.page.render` makes HTML of it."""
    verdict = verdict_of(data)
    left_out = (
        f"{data.left_out} more pairs are bitwise equal and not listed. " if data.left_out else ""
    )
    work = Work(
        Tree("Modules", classes={one.path: one.module_class for one in data.modules}),
        Scatter("Metric over execution order", METRICS),
        Table(
            "Pairs", TABLE, note=f"{left_out}× noise floor: 1 is the most that rounding explains"
        ),
        Selected("Selected pair"),
    )
    versions = dict.fromkeys(f"torch {run.version}" for run in data.runs if run.version)
    steps = data.answer["steps"]
    about = " / ".join(versions) + (f" · steps {spans(steps)}" if steps else "")
    return Page(
        title=f"{words_alone(verdict.sentence)} · Lockstep",
        areas=(verdict, Strip(_strip_title(data)), work, _coverage(data)),
        subjects=(
            Subject("reference", Path(data.runs[0].path).name or data.runs[0].path),
            Subject("candidate", Path(data.runs[1].path).name or data.runs[1].path, dashed=True),
        ),
        about=about.removeprefix(" · "),
        rows=_rows(data),
    )


def _strip_title(data: ComparisonData) -> str:
    return "Where the runs part" if data.answer["verdict"] == "diverged" else "All sites"


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison, from it and from the recordings that it names.

    Raises OSError if the file cannot be written. Raises RecordingError if a recording is no longer there, or damaged.
    """
    recordings = open_recording(comparison.reference), open_recording(comparison.candidate)
    write_page(comparison_page(gather(comparison, *recordings)), path)


def _rows(data: ComparisonData) -> Rows:
    pairs = data.pairs
    columns = {one.name: _column(getattr(pairs, one.name)) for one in fields(pairs)}
    return Rows(
        columns=columns,
        kinds=KINDS,
        marked=data.origins,
        selected=data.origins[0] if data.origins else _worst(pairs.margin),
        details={row: blocks_of(detail, data) for row, detail in data.details.items()},
    )


def _column(column: object) -> Column:
    if isinstance(column, TextColumn):
        return PageText(column.codes, column.names)
    assert isinstance(column, np.ndarray)
    return trimmed(column) if column.dtype.kind == "f" else column


def _worst(margin: types.Floats) -> int:
    """The row that is furthest beyond its floor; the first one where all are equal, -1 without any."""
    if not len(margin):
        return -1
    known = np.nan_to_num(margin, nan=-1.0, posinf=np.inf)
    return int(np.argmax(known))


def _coverage(data: ComparisonData) -> Columns:
    answer = data.answer
    counts = (
        ("compared", answer["compared"]),
        ("equal bit by bit", answer["equal"]),
        ("inside their tolerance", answer["inside_tolerance"]),
        ("could not be judged", answer["unjudged"]),
        ("missing on one side", answer["missing"]),
    )
    told = [f"{count} {words}" for words, count in counts if count]
    told += _equal_elsewhere(data)
    told = [*told, *_equal_in_value(data)]
    set_up = [_set_up(one) for one in data.set_up] or _set_up_origins(data)
    return Columns(
        "What was compared, and what was not",
        (
            Card("Tensors", (Sentences(told, empty="No tensor was compared."),)),
            Card("Set-up", (Sentences(set_up, empty="Both were set up alike, as far as was recorded."),)),
            Card("Not compared", (Sentences(data.coverage, empty="Everything recorded was compared."),)),
            Card("The runs", (Sentences(_runs(data)), _again(data))),
        ),
    )  # fmt: skip


def _equal_elsewhere(data: ComparisonData) -> list[str]:
    """Why the table may list fewer rows as bitwise equal than there are equal tensors."""
    pairs = data.pairs
    listed = pairs.kind.is_one_of(EQUAL)
    count = data.answer["equal"] - int(listed.sum()) - data.left_out
    if count <= 0:
        return []
    other = pairs.evidence.is_one_of(EVIDENCE_WORDS[Evidence.DIGEST]) & ~listed
    kinds = ", ".join(pairs.kind.names[code] for code in np.unique(pairs.kind.codes[other]))
    return [f"of those equal, {count} listed as: {kinds}"]


def _equal_in_value(data: ComparisonData) -> list[str]:
    """What lies in its tolerance without a difference: its numbers are equal, its bits or its dtype are not."""
    pairs = data.pairs
    count = int((pairs.kind.is_one_of(IN_TOLERANCE) & (pairs.difference == 0)).sum())
    return [f"{count} equal in value, though not bit by bit"] if count else []


def _set_up_origins(data: ComparisonData) -> list[str]:
    """What the origins say of a set-up of which nothing else is known to differ."""
    origins = data.answer["origins"]
    return [one["reason"] for one in origins if one["kind"] == FindingKind.SETUP.value]


def _set_up(line: types.SetupLine) -> str:
    explains: Mapping[str, str] = {
        types.YES: "may explain the origin", types.NO: "cannot explain the origin",
    }  # fmt: skip
    said = explains.get(line.explains, "")
    why = f": {line.why}" if said and line.why else line.why
    return f"{line.words} ({said}{why})" if said or why else line.words


def _runs(data: ComparisonData) -> list[str]:
    return [
        f"{run.name}: {run.path}"
        + (f", torch {run.version}" if run.version else "")
        + (f", {run.device}" if run.device else "")
        + (f", steps {spans(run.steps)}" if run.steps else "")
        for run in data.runs
    ]


def _again(data: ComparisonData) -> Commands | Sentences:
    commands = [
        Command(f"The {run.name}'s command", run.command) for run in data.runs if run.command
    ]
    return Commands(commands, "How they were run") if commands else Sentences(())
