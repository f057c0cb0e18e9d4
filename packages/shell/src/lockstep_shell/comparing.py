"""Commands that compare the two open recordings, and list pairs of the comparison."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from lockstep import options
from lockstep.compare import (
    COLUMN_TITLES,
    PAIR_TITLES,
    Finding,
    column_of,
    pair_cells,
    print_comparison,
    signs_words,
    tally_of,
)
from lockstep.errors import UsageError
from lockstep.terminal import Cell, Column, add_more, add_table, counted
from lockstep_shell import places
from lockstep_shell.places import Place
from lockstep_shell.session import Session

_ASCENDING = frozenset({"Cosine", "Step", "Index", "Call"})
"""Columns whose small numbers are what is looked for; of the others it is the large ones."""


@click.command("compare")
@options.comparing_options
@options.option("--all", "show_all", words="The table of all pairs.")
@click.pass_obj
def compare(session: Session, /, show_all: bool, **manner: Any) -> int:
    """Compare the two recordings, once for each manner of comparing."""
    comparison = session.comparison(manner)
    print_comparison(comparison, show_all=show_all)
    return comparison.exit_code()


def _columns(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    end = "=" if parameter.multiple else ""
    return [f"{one}{end}" for one in COLUMN_TITLES if one.lower().startswith(typed.lower())]


@click.command("list")
@places.argument(required=False)
@click.option(
    "--cosine", type=click.FloatRange(-1, 1), help="Pairs below this cosine, lowest first."
)
@click.option(
    "--by",
    type=click.Choice(COLUMN_TITLES, case_sensitive=False),
    metavar="COLUMN",
    shell_complete=_columns,
    help="Sort by this column of the CSV file, worst first.  [default: Margin]",
)
@click.option("--over", type=float, help="Pairs with more than this in the column.")
@click.option("--under", type=float, help="Pairs with less than this in the column.")
@click.option(
    "--where", metavar="COLUMN=TEXT", multiple=True, shell_complete=_columns, help="Pairs with this text there.",
)  # fmt: skip
@options.limit
@click.pass_obj
def list_pairs(
    session: Session,
    site: tuple[str, ...],
    cosine: float | None,
    by: str | None,
    over: float | None,
    under: float | None,
    where: tuple[str, ...],
    limit: int,
) -> None:
    """List pairs of the comparison, of SITE or of all, worst first.

    \b
    list --cosine 0.98 --limit 10
    list --by MaxAbsErr --over 0.01
    list h.3.mlp --where Outcome=differ
    """
    if cosine is not None:
        if by not in (None, "Cosine") or under is not None:
            raise UsageError("--cosine X is --by Cosine --under X; give one of them")
        by, under = "Cosine", cosine
    title = by or "Margin"
    comparison = session.comparison()
    texts = [(column_of(comparison, column), text) for column, text in map(_text_column, where)]
    place = places.place_of(site, session) if site else None
    value = column_of(comparison, title)
    pairs = [
        (one, value(one))
        for one in comparison.findings
        if _is_meant(session, place, one)
        and all(str(cell_of(one)).lower() == text for cell_of, text in texts)
    ]
    click.echo(_listed(pairs, title, over, under, limit))


def _text_column(given: str) -> tuple[str, str]:
    name, equals, text = given.partition("=")
    title = next((one for one in COLUMN_TITLES if one.lower() == name.strip().lower()), None)
    if not equals or title is None:
        raise UsageError(f"--where {given}: give COLUMN=TEXT, with a column of the CSV file")
    return title, text.strip().lower()


def _is_meant(session: Session, place: Place | None, finding: Finding) -> bool:
    """Whether a pair is of the chosen step and rank and, on either side, of a place."""
    record, both = finding.pair.present, (finding.pair.reference, finding.pair.candidate)
    looked_at = session.step in (None, record.step) and session.rank in (None, record.rank)
    return looked_at and (place is None or any(one and place.is_of(one) for one in both))


def _listed(
    pairs: list[tuple[Finding, Cell]],
    title: str,
    over: float | None,
    under: float | None,
    limit: int,
) -> str:
    known = [(one, cell) for one, cell in pairs if cell is not None and cell == cell]
    unknown = len(pairs) - len(known)
    numbers = all(isinstance(cell, (int, float)) for _, cell in known)
    if not numbers and (over is not None or under is not None):
        raise UsageError(f"{title} holds texts; --where {title}=TEXT chooses by one")
    known = [(one, cell) for one, cell in known if _is_between(cell, over, under)]
    known.sort(key=lambda pair: pair[1], reverse=numbers and title not in _ASCENDING)
    text = Text(f"{counted(len(known), 'pair')}, by {title}")
    for word, bound in (("over", over), ("under", under)):
        text.append(f", {word} {bound:g}" if bound is not None else "")
    text.append(f"; of {unknown} more it is not known\n" if unknown else "\n")
    signs = signs_words(tally_of(one for one, _ in known[:limit]))
    text.append(f"{signs}\n" if signs else "")
    beside = () if title in (*PAIR_TITLES, "RelEuclideanDistance") else (title,)
    columns = [Column(one, right=True) for one in (*PAIR_TITLES[1:-1], *beside)]
    rows = [
        [*cells[:-1], *[cell for _ in beside], cells[-1]]
        for cells, cell in ((pair_cells(one), cell) for one, cell in known[:limit])
    ]
    add_table(text, [Column("Outcome"), *columns, Column("Name")], rows)
    add_more(text, len(known) - limit, more=f"(--limit {len(known)})")
    return text.plain.rstrip("\n")


def _is_between(cell: Cell, over: float | None, under: float | None) -> bool:
    if not isinstance(cell, (int, float)):
        return True
    return (over is None or cell > over) and (under is None or cell < under)
