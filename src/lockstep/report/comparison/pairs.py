"""The table of all pairs, built apart from any file format: one row per finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.core.finding import Comparison, Evidence, Finding, Origin
from lockstep.core.records import Statistics, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.fixed_rule import accuracy_reached

if TYPE_CHECKING:
    from lockstep.report.csv_tables import Cell

    _Value = Callable[[Finding, Origin | None], Cell]

_INDEXED_ROLES = frozenset({Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.LOSS})

EVIDENCE_WORDS = {
    Evidence.DIGEST: "digest",
    Evidence.TENSORS: "tensors",
    Evidence.SKETCH: "sketch (estimate)",
    Evidence.STATISTICS: "statistics (lower bound)",
    Evidence.NONE: "",
}
"""How a table calls the source of its numbers."""


@dataclass(frozen=True, slots=True)
class Row:
    """One pair as a line of a table.

    cells: One per title in `TITLES`; None is an empty cell.
    reached: Answer of the fixed rule, None where it is not known.
    origin: Whether this pair is an origin, the first place of a fault.
    """

    cells: tuple[Cell, ...]
    reached: bool | None
    origin: bool

    def __getitem__(self, title: str) -> Cell:
        """The cell under a title."""
        return self.cells[TITLES.index(title)]


def table_rows(comparison: Comparison) -> Iterator[Row]:
    """One row per finding, in the comparison's order; the cells of a missing side are empty.

    Rows are made one at a time: a million of them would take some gigabytes.
    """
    origins = {identity(origin.finding): origin for origin in comparison.origins}
    for finding in comparison.findings:
        yield _row(finding, origins.get(identity(finding)))


def column_of(comparison: Comparison, title: str) -> Callable[[Finding], Cell]:
    """Return the function that gives the cell under one title, if a whole row is not wanted."""
    origins = {identity(origin.finding): origin for origin in comparison.origins}
    value = dict(COLUMNS)[title]
    return lambda finding: value(finding, origins.get(identity(finding)))


def tensor_name(record: TensorRecord) -> str:
    """Full name of a record, e.g. `head.fc / torch.nn.Linear #0, forward, output.0`."""
    return f"{record.site}, {tensor_role(record)}"


def tensor_role(record: TensorRecord) -> str:
    """Return a tensor's role at its site: `output.0`, or role and name for parameters and state."""
    if record.role in _INDEXED_ROLES or not record.name:
        repeat = f" (time {record.occurrence + 1})" if record.occurrence else ""
        return f"{record.role.value}.{record.index}{repeat}"
    return f"{record.role.value} {record.name}"


def reached_word(reached: bool | None) -> str:
    """Yes, No or N/A, as the source document's column has it."""
    return "N/A" if reached is None else "Yes" if reached else "No"


def _row(finding: Finding, origin: Origin | None) -> Row:
    cells = tuple(value(finding, origin) for _, value in COLUMNS)
    return Row(cells, accuracy_reached(finding.metrics), origin is not None)


def identity(finding: Finding) -> tuple[object, ...]:
    """Return the key of a finding: a cause may replace it under `Comparison.origins`."""
    record = finding.pair.present
    side = finding.pair.reference is None
    return (side, record.rank, record.step, record.site, record.role, record.index, record.name,
            record.occurrence)  # fmt: skip


def _side(name: str, value: Callable[[TensorRecord], Cell]) -> _Value:
    def of_side(finding: Finding, origin: Origin | None) -> Cell:
        record = finding.pair.reference if name == "Reference" else finding.pair.candidate
        return None if record is None else value(record)

    return of_side


def _either(value: Callable[[TensorRecord], Cell]) -> _Value:
    return lambda finding, origin: value(finding.pair.present)


def _metric(name: str) -> _Value:
    def of_metrics(finding: Finding, origin: Origin | None) -> Cell:
        value: float = getattr(finding.metrics, name)
        return None if math.isnan(value) else value

    return of_metrics


def _statistic(name: str) -> Callable[[TensorRecord], Cell]:
    def of_record(record: TensorRecord) -> Cell:
        statistics: Statistics | None = record.statistics
        return None if statistics is None else float(getattr(statistics, name))

    return of_record


def _kind(finding: Finding, origin: Origin | None) -> Cell:
    kind = origin.kind if origin is not None else finding.kind
    return "" if kind is None else kind.value


def source_line(finding: Finding, origin: Origin | None) -> str:
    """Line of an origin, else of the candidate's call, else of the reference's."""
    if origin is not None:
        return origin.source
    sides = (finding.pair.candidate, finding.pair.reference)
    return next((record.source for record in sides if record is not None and record.source), "")


def _known(value: float) -> Cell:
    return None if math.isnan(value) else value


_SIDES = ("Reference", "Candidate")
_STATISTICS = (("Max", "maximum"), ("Min", "minimum"), ("Mean", "mean"), ("Norm", "norm"))

COLUMNS: tuple[tuple[str, _Value], ...] = (
    *((f"{side} Name", _side(side, tensor_name)) for side in _SIDES),
    ("Step", _either(lambda record: record.step)),
    ("Rank", _either(lambda record: record.rank)),
    ("Phase", _either(lambda record: record.site.phase.value)),
    ("Module", _either(lambda record: record.site.module)),
    ("Operator", _either(lambda record: record.site.op)),
    ("Call", _either(lambda record: record.site.call)),
    ("Role", _either(lambda record: record.role.value)),
    ("Index", _either(lambda record: record.index)),
    ("Tensor", _either(lambda record: record.name)),
    *((f"{side} Dtype", _side(side, lambda record: record.dtype)) for side in _SIDES),
    *((f"{side} Shape", _side(side, lambda record: str(list(record.shape)))) for side in _SIDES),
    ("Cosine", _metric("cosine")),
    ("MaxAbsErr", _metric("max_abs")),
    ("AccumulatedRelErr", _metric("accumulated_relative")),
    ("RelEuclideanDistance", _metric("rel_l2")),
    ("KLDivergence", _metric("kl_divergence")),
    ("StandardDeviation", _metric("standard_deviation")),
    ("MeanAbsErr", _metric("mean_abs")),
    ("RMSE", _metric("rmse")),
    ("MaxRelativeErr", _metric("max_relative")),
    ("MeanRelativeErr", _metric("mean_relative")),
    ("MaxUlp", _metric("max_ulp")),
    ("One Thousandth Err Ratio", _metric("within_1e_3")),
    ("Five Thousandths Err Ratio", _metric("within_5e_3")),
    ("NaN Mismatch", _metric("nan_mismatch")),
    ("Inf Mismatch", _metric("inf_mismatch")),
    ("Evidence", lambda finding, origin: EVIDENCE_WORDS[finding.metrics.evidence]),
    *(
        (f"{side} {title}", _side(side, _statistic(name)))
        for side in _SIDES
        for title, name in _STATISTICS
    ),
    ("Difference", lambda finding, origin: _known(finding.difference)),
    ("Tolerance", lambda finding, origin: _known(finding.tolerance)),
    ("Margin", lambda finding, origin: _known(finding.margin)),
    ("Noise Floor", lambda finding, origin: _known(finding.floor)),
    ("Outcome", lambda finding, origin: finding.outcome.value),
    ("Kind", lambda finding, origin: _kind(finding, origin)),
    ("Judged By", lambda finding, origin: finding.judged_by),
    ("Inherited", lambda finding, origin: "Yes" if finding.inherited else "No"),
    ("Origin", lambda finding, origin: "Yes" if origin is not None else "No"),
    (
        "Accuracy Reached or Not",
        lambda finding, origin: reached_word(accuracy_reached(finding.metrics)),
    ),
    ("Alignment", lambda finding, origin: finding.pair.method),
    ("Reason", lambda finding, origin: finding.reason),
    ("Source", source_line),
)
"""Each column's title, and the function that gives its cell."""

TITLES: tuple[str, ...] = tuple(title for title, _ in COLUMNS)
"""Titles of the columns, in order; CSV and XLSX share them."""
