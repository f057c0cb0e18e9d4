"""The common part of all tools' tables: the distance of a pair, and writing the file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from lockstep.compare import Evidence, Metrics, Pair
from lockstep.errors import OutputExistsError
from lockstep.judging import measure
from lockstep.terminal import Cell, write_csv_table


def measured(pair: Pair) -> tuple[Metrics, str]:
    """How far two tensors are apart, and why that is not known, "" where it is."""
    if pair.reference is None or pair.candidate is None:
        return Metrics(Evidence.NONE), "no partner"
    metrics = measure(pair.reference.content, pair.candidate.content, read_tensors=True)
    return metrics, "" if metrics.evidence is not Evidence.NONE else "no numbers of both"


def write_table(
    folder: Path,
    name: str,
    titles: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    moment: str = "",
) -> Path:
    """Write a table into a folder, which is made, and say where it is.

    name: Of the file, in front of the moment.
    moment: "" for now.

    Raises OutputExistsError if it cannot be written.
    """
    table = folder / f"{name}_{moment or time.strftime('%Y%m%d%H%M%S')}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_csv_table(table, titles, rows)
    except OSError as error:
        raise OutputExistsError(
            f"{table}: cannot be written ({error.strerror or error}); give another folder"
        ) from error
    click.echo(f"{table}")
    return table


__all__ = ["measured", "write_table"]
