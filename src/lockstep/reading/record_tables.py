"""Records of a recording as a table, and one number of a site over steps; only the chosen columns are decoded."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lockstep.core.arguments import choice_of
from lockstep.core.records import HEADINGS
from lockstep.core.selection import is_rank, is_step
from lockstep.core.site import Phase, Role, Site
from lockstep.reading.chosen_calls import (
    ChosenRanks,
    ChosenSteps,
    check_choice,
    is_chosen,
    no_match,
)
from lockstep.store import schema
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.record_columns import OF_A_CONTENT, OF_A_RECORD

NUMBERS = tuple(HEADINGS)
"""What is known of a tensor in numbers; see `lockstep.core.records.Statistics`."""

COLUMNS = (
    "rank", "step", "phase", "module", "op", "call", "role", "index", "name", "occurrence",
    "dtype", "shape", "device", "digest", *NUMBERS, "saved", "note",
    "kind", "module_class", "recomputed", "sequence", "content",
)  # fmt: skip
"""Columns of `record_table`. `phase` is the record's own; `saved` tells whether the whole tensor is there."""

_OF_A_CALL = ("step", "module", "op", "call", "kind", "module_class", "recomputed")
_AT = ("rank", "step", "phase", "module", "op", "call", "index", "name", "occurrence")


def record_table(
    recording: Recording,
    *,
    columns: Sequence[str] | None = None,
    pattern: str | None = None,
    step: ChosenSteps = None,
    rank: ChosenRanks = None,
) -> pl.DataFrame:
    """One row per tensor record, by rank, in order of time.

    Sketches and whole tensors are never read, and of a record just the columns that are asked for: a table without
    digests and numbers takes a small part of the time and memory.

    Parameters
    ----------
    columns
        Some of `COLUMNS`, in the order wanted; None for all. A number is null where it was not taken or there is none,
        as the mean of no finite element.
    pattern
        Records of these calls only; see `is_chosen`.
    step, rank
        Of these only.

    Raises
    ------
    UsageError
        If there is no such column, step or rank, or the pattern matches nothing.
    CorruptError
        If a file is damaged.

    Examples
    --------
    >>> record_table(recording, columns=["module", "op", "norm"], pattern="gelu")  # doctest: +SKIP
    """
    names = list(COLUMNS if columns is None else columns)
    for name in names:
        choice_of("columns", name, COLUMNS)
    check_choice(recording, step=step, rank=rank)
    ranks = [item for name, item in recording.ranks.items() if is_rank(rank, name)]
    chosen = [_chosen_calls(item, pattern, step) for item in ranks]
    if pattern is not None and not any(rows.height for rows in chosen):
        raise no_match(recording, pattern)
    tables = [_records(item, rows, names) for item, rows in zip(ranks, chosen, strict=True)]
    return pl.concat([pl.DataFrame(schema={name: _KINDS[name] for name in names}), *tables])


def series(
    recording: Recording,
    pattern: str,
    *,
    role: Role | str = Role.OUTPUT,
    number: str = "norm",
    rank: ChosenRanks = None,
) -> pl.DataFrame:
    """One number of the tensors in one role at the sites that a pattern chooses, over all steps.

    Parameters
    ----------
    pattern
        See `is_chosen`.
    role
        As in `lockstep.core.site.Role`, such as "output" or "param_grad".
    number
        One of `NUMBERS`.
    rank
        Of this only.

    Returns
    -------
    polars.DataFrame
        A row per tensor: rank, step, phase, module, op, call, index, name, occurrence and the number.

    Raises
    ------
    UsageError
        If there is no such role, number or rank, or the pattern matches nothing.
    CorruptError
        If a file is damaged.
    """
    wanted = choice_of("role", getattr(role, "value", role), [one.value for one in Role])
    choice_of("number", number, NUMBERS)
    found = record_table(recording, columns=[*_AT, number, "role"], pattern=pattern, rank=rank)
    return found.filter(pl.col("role") == wanted).drop("role")


def _chosen_calls(rank: RankRecording, pattern: str | None, step: ChosenSteps) -> pl.DataFrame:
    """Rows of the table of calls."""
    rows = rank.call_table
    if step is not None:
        rows = rows.filter(pl.col("step").is_in([one for one in rank.steps if is_step(step, one)]))
    if pattern is None:
        return rows
    parts = ("module", "op", "call", "phase")
    sites = rows.select(parts).unique()
    matching = [is_chosen(pattern, _site(*row)) for row in sites.iter_rows()]
    return rows.join(sites.filter(pl.Series(matching, dtype=pl.Boolean)), on=parts, how="semi")


def _site(module: str, op: str, call: int, phase: str) -> Site:
    # A phase that there is none of is refused where the call is read.
    known = phase in {one.value for one in Phase}
    return Site(module, op, call, Phase(phase) if known else Phase.INIT)


def _records(rank: RankRecording, calls: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    read = [name for name in names if name in OF_A_RECORD | OF_A_CONTENT]
    read += ["shard"] if "saved" in names else []
    rows = rank.record_rows(calls, read)
    of_call = [name for name in _OF_A_CALL if name in names]
    rows = rows.join(
        calls.select("call_id", *of_call), on="call_id", how="left", maintain_order="left"
    )
    made = {"rank": pl.lit(rank.name), "saved": pl.col("shard").is_not_null()}
    return rows.select(
        made.get(name, pl.col(name)).cast(_KINDS[name]).alias(name) for name in names
    ).with_columns(pl.col(pl.Float64).fill_nan(None))


_KINDS: dict[str, pl.DataType] = {
    **schema.CALLS,
    **schema.RECORDS,
    **schema.CONTENTS,
    "rank": pl.String(),
    "saved": pl.Boolean(),
}
