"""The pairs of a comparison as a data frame: `Comparison.pairs` and `Comparison.to_polars`."""

from __future__ import annotations

import polars as pl

from lockstep.core.finding import Comparison, Finding
from lockstep.report.comparison.pairs import COLUMNS, identity
from lockstep.report.csv_tables import Cell

_NAMES = {
    "Operator": "op",
    "MaxAbsErr": "max_abs",
    "AccumulatedRelErr": "accumulated_relative",
    "RelEuclideanDistance": "rel_l2",
    "KLDivergence": "kl_divergence",
    "StandardDeviation": "standard_deviation",
    "MeanAbsErr": "mean_abs",
    "MaxRelativeErr": "max_relative",
    "MeanRelativeErr": "mean_relative",
    "MaxUlp": "max_ulp",
    "One Thousandth Err Ratio": "within_1e_3",
    "Five Thousandths Err Ratio": "within_5e_3",
    "Accuracy Reached or Not": "accuracy_reached",
}
"""Columns whose name is not that of the CSV in lower case: they are called as in the JSON."""

_WHOLE = {"step", "call", "index", "nan_mismatch", "inf_mismatch"}
_TRUTHS = {"inherited", "origin", "accuracy_reached"}
_TEXTS = {
    "reference_name", "candidate_name", "rank", "phase", "module", "op", "role", "tensor", "reference_dtype",
    "candidate_dtype", "reference_shape", "candidate_shape", "evidence", "outcome", "kind", "judged_by", "alignment",
    "reason", "source",
}  # fmt: skip
_ANSWERS = {"Yes": True, "No": False}

SHORT = (
    "step", "rank", "phase", "module", "op", "role", "tensor", "difference", "tolerance", "margin", "cosine",
    "max_abs", "outcome", "kind", "origin", "source",
)  # fmt: skip
"""The columns that people read."""


def pair_table(comparison: Comparison) -> pl.DataFrame:
    """Return a row per pair with every column, in the comparison's order."""
    origins = {identity(origin.finding): origin for origin in comparison.origins}
    rows = [(one, origins.get(identity(one))) for one in comparison.findings]
    columns = []
    for title, value in COLUMNS:
        name = _NAMES.get(title, title.lower().replace(" ", "_"))
        cells = [value(finding, origin) for finding, origin in rows]
        columns.append(pl.Series(name, _typed(name, cells), _kind(name), strict=False))
    return pl.DataFrame(columns)


def short_table(comparison: Comparison) -> pl.DataFrame:
    """Return the columns that people read: origins first, then pairs by how far beyond their tolerance they are."""
    table = pair_table(comparison).select(SHORT)
    return table.sort("origin", "margin", descending=True, nulls_last=True, maintain_order=True)


def worst_of(comparison: Comparison, count: int) -> list[Finding]:
    """Return the origins, then the pairs that are furthest beyond their tolerance; none that are equal."""
    origins = [origin.finding for origin in comparison.origins]
    known = set(map(identity, origins))
    others = [
        one for one in comparison.findings if one.difference > 0 and identity(one) not in known
    ]
    return [*origins, *sorted(others, key=lambda one: -one.margin)][:count]


def _typed(name: str, cells: list[Cell]) -> list[Cell]:
    return [_ANSWERS.get(str(cell)) for cell in cells] if name in _TRUTHS else cells


def _kind(name: str) -> type[pl.DataType]:
    if name in _WHOLE:
        return pl.Int64
    if name in _TRUTHS:
        return pl.Boolean
    return pl.String if name in _TEXTS else pl.Float64
