"""`overflow`: the operators whose results hold NaN or infinity, in order of time."""

from __future__ import annotations

import click
import polars as pl
from rich.text import Text

from lockstep import options
from lockstep.recordings import Phase, Role, first_made, record_table
from lockstep.terminal import Column, add_more, add_table, printable
from lockstep_shell.session import Opened, Session

_MADE = [
    role.value
    for role in (
        Role.OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD, Role.BUFFER, Role.PARAM_AFTER, Role.STATE_AFTER, Role.LOSS,
    )
]  # fmt: skip
_IS_READ = (pl.col("phase") == Phase.OPTIMIZER.value) & (pl.col("role") == Role.PARAM_GRAD.value)
_AT = ("rank", "step", "module", "op", "call", "phase")
_COUNTS = ("nan_count", "inf_count")


@click.command("overflow")
@options.limit
@click.pass_obj
def overflow(session: Session, limit: int) -> None:
    """List results that hold NaN or infinity, in order of time, and whether what they were made of does.

    A mask of minus infinity is among them: it is no error. Above the list stands what made the first one of each
    step; the verb `lockstep overflow` finds the same, and leaves out what does no harm.
    """
    session.each(lambda one: _text(one, session, limit))


def _text(one: Opened, session: Session, limit: int) -> str:
    columns = [*_AT, "role", "index", "name", *_COUNTS, "sequence"]
    table = record_table(one.recording, columns=columns, step=session.step, rank=session.rank)
    text = Text()
    for name, rank in one.recording.ranks.items():
        for event in rank.manifest.events if session.rank in (None, name) else ():
            text.append(printable(f"{name} step {event.step}: {event.kind}, {event.detail}") + "\n")
    is_made = pl.col("role").is_in(_MADE) & ~_IS_READ
    table = table.with_columns(odd=pl.sum_horizontal(*_COUNTS, ignore_nulls=False))
    given = table.filter(~is_made).group_by(_AT).agg(given=pl.col("odd").max())
    made = table.filter(is_made, pl.col("odd") > 0)
    found = made.join(given, on=_AT, how="left", maintain_order="left")
    unknown = table["odd"].null_count()
    text.append(f"{found.height} results of {table.height} tensors hold NaN or infinity")
    text.append(f"; of {unknown} it is not known\n" if unknown else "\n")
    for rank, step in found.select("rank", "step").unique(maintain_order=True).head(limit).rows():
        for source in first_made(one.recording.ranks[rank].calls(step))[:1]:
            words = f"{source.words} out of {source.call.site}, {source.part.value}"
            text.append(printable(f"made first at step {step}, {rank}: {words}") + "\n")
    rows = [
        (
            f"{row['module'] or '(model)'} / {row['op']} #{row['call']}, {row['phase']}, {row['role']}.{row['index']}",
            *(row[name] for name in _COUNTS),
            {None: "not known", 0: "finite"}.get(row["given"], "not finite"),
            row["step"],
            row["rank"],
        )
        for row in found.head(limit).iter_rows(named=True)
    ]
    titles = [
        Column("NaN", right=True),
        Column("Infinite", right=True),
        Column("What it was given"),
    ]
    add_table(text, [Column("Result"), *titles, Column("Step", right=True), Column("Rank")], rows)
    add_more(text, found.height - len(rows), more=f"(--limit {found.height})")
    return text.plain.rstrip("\n")
