"""The page's blocks for the values of a parameter or gradient over steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from lockstep.core.site import CallKind, Role
from lockstep.core.text import spans
from lockstep.reading.recorded_series import GRADIENT, PARAMETER
from lockstep.reading.recorded_values import ValueCounts
from lockstep.report.page import HeatMap, Histogram
from lockstep.report.page.island import trimmed
from lockstep.report.page.page import Block

_WHAT = {
    Role.PARAM.value: PARAMETER, Role.PARAM_AFTER.value: PARAMETER, Role.PARAM_GRAD.value: GRADIENT,
}  # fmt: skip
_KINDS = (CallKind.INIT.value, CallKind.OPTIMIZER.value, CallKind.GRADIENT.value)


def value_details(
    table: pl.DataFrame, counted: Iterable[ValueCounts]
) -> Mapping[int, tuple[Block, ...]]:
    """Blocks by row of the table, at the first row of each place that a parameter or gradient is listed at.

    The page shows them at the same place in other steps as well.
    """
    blocks = {(one.rank, one.what, one.name): value_blocks(one) for one in counted}
    if not blocks:
        return {}
    own = pl.col("role").is_in(list(_WHAT)) & pl.col("kind").is_in(list(_KINDS))
    first = table.with_row_index("row").filter(own)
    first = first.unique(["rank", "phase", "role", "name"], keep="first", maintain_order=True)
    return {
        row: found
        for row, rank, role, name in first.select("row", "rank", "role", "name").iter_rows()
        if (found := blocks.get((rank, _WHAT[role], name)))
    }


def value_blocks(counted: ValueCounts) -> tuple[Block, ...]:
    """The first and the last step in one histogram, and where there are more, all of them below each other."""
    moments = [_moment(counted.what, int(step)) for step in counted.steps]
    rows = counted.counts.astype(np.float64)
    edges = trimmed(counted.edges)
    part = f", from {'parts of ' if counted.sampled else ''}whole tensors"
    if counted.outside:
        part += f"; {counted.outside} lie outside"
    if len(rows) == 1:
        return (Histogram(f"Values {moments[0]}{part}", edges, rows[0]),)
    both = Histogram(f"Values{part}", edges, rows[0], rows[-1], (moments[0], moments[-1]))
    if len(rows) == 2:
        return (both,)
    about = f"rows: steps {spans(map(int, counted.steps))}; columns: from {edges[0]:.4g} to {edges[-1]:.4g}"
    bins = rows.shape[1]
    return both, HeatMap(
        f"Values over steps{part}", len(rows), bins, rows.ravel(), about, signed=False, means=False
    )


def _moment(what: str, step: int) -> str:
    if what == GRADIENT:
        return f"at step {step}"
    return f"after step {step - 1}" if step else "at the beginning"
