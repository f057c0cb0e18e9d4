"""`lockstep largest REF CAND`, and the same as a page's data of `lockstep compare -o DIR`: a whole wing, to copy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from lockstep import options
from lockstep.compare import Comparison
from lockstep.errors import code_of
from lockstep.judging import measure_pair
from lockstep.plugin import ReportWriter, Verb, hookimpl
from lockstep.recordings import paired_records
from lockstep.terminal import Column, enveloped, json_text, table_text

COLUMNS = Column("rel", right=True), Column("step", right=True), Column("role"), Column("site")


@hookimpl
def lockstep_commands() -> list[Verb]:
    return [Verb("largest", "List the largest differences.", "Examples", lambda: largest)]


@hookimpl
def lockstep_report_writers() -> list[ReportWriter]:
    return [ReportWriter("largest", ".largest.json", write_page)]


@click.command
@click.argument("reference")
@click.argument("candidate")
@options.limit
def largest(reference: str, candidate: str, limit: int) -> int:
    """List the pairs of tensors that are furthest apart; exit code 1 if any two differ."""
    measured = [measure_pair(pair) for pair in paired_records(reference, candidate)]
    rows = furthest(measured, limit)
    click.echo(table_text(COLUMNS, rows))
    return code_of(differs=bool(rows), looked=bool(measured))


def write_page(comparison: Comparison, path: Path) -> None:
    path.write_text(json_text(enveloped({"largest": furthest(comparison.findings)})))


def furthest(found: Iterable, count: int = 10) -> list[tuple]:
    apart = [(one.difference, one.pair.present) for one in found if one.difference > 0]
    apart.sort(key=lambda one: one[0], reverse=True)
    return [(rel, at.step, at.role.value, str(at.site)) for rel, at in apart[:count]]
