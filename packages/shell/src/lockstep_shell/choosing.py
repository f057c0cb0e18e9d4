"""Commands that choose recordings, a step, a rank or a side for the other commands."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from lockstep.errors import UsageError
from lockstep.terminal import Column, printable, table_text
from lockstep_shell.looking import recordings_table
from lockstep_shell.session import Opened, Session


def _entries(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Names of what was found, else paths."""
    session = context.find_object(Session)
    names = [entry.name for entry in session.entries] if session is not None else []
    found = [CompletionItem(name) for name in names if name.startswith(typed)]
    return found or [CompletionItem(typed, type="dir")]


@click.command("open")
@click.argument("names", nargs=-1, metavar="NAME [NAME]", shell_complete=_entries)
@click.pass_obj
def open_recordings(session: Session, names: tuple[str, ...]) -> None:
    """Open one recording, or a reference and a candidate; without NAME list what there is."""
    if not names:
        click.echo(recordings_table(session))
        return
    if len(names) > 2:
        raise UsageError(f"{len(names)} names; give one recording, or a reference and a candidate")
    known = {entry.name for entry in session.entries}
    session.open(
        *(session.folder / name if name in known else Path(name).expanduser() for name in names)
    )
    click.echo(opened_text(session))


def opened_text(session: Session) -> str:
    """Return the open recordings, a line each."""
    return "\n".join(_line(one) for one in session.opened)


def _line(one: Opened) -> str:
    ranks, manifest = one.recording.ranks, one.recording.manifest
    steps = sorted({step for rank in ranks.values() for step in rank.steps})
    words = [
        str(one.recording.path),
        f"{len(ranks)} rank{'s' * (len(ranks) != 1)}, steps {', '.join(map(str, steps)) or 'none'}",
        f"saving {manifest.options.save}",
        " ".join(manifest.command),
    ]
    lost = [f"  MISSING {sentence}" for sentence in one.recording.missing]
    return "\n".join(map(printable, [": ".join([one.side, ", ".join(words)]), *lost]))


@click.command("steps")
@click.pass_obj
def steps(session: Session) -> None:
    """List the recorded steps of each rank."""
    columns = Column("Rank"), Column("Step", right=True), Column("Calls", right=True), Column("")

    def told(one: Opened) -> str:
        rows = [
            (name, step.index, step.calls, _state(step.complete, step.skipped))
            for name, rank in one.recording.ranks.items()
            for step in rank.manifest.steps
        ]
        return table_text(columns, rows) or "no step was recorded"

    session.each(told)


def _state(complete: bool, skipped: bool) -> str:
    skip = ", update skipped by the gradient scaler" if skipped else ""
    return ("complete" if complete else "incomplete") + skip


@click.command("ranks")
@click.pass_obj
def ranks(session: Session) -> None:
    """List the ranks, with what was recorded of each."""
    columns = (
        Column("Rank"),
        Column("Devices"),
        Column("Steps", right=True),
        Column("Tensors", right=True),
    )

    def told(one: Opened) -> str:
        rows = [
            (name, ", ".join(rank.manifest.devices), len(rank.steps), rank.record_count)
            for name, rank in one.recording.ranks.items()
        ]
        return table_text(columns, rows) or "; ".join(one.recording.missing)

    session.each(told)


def _known(session: Session, what: str) -> list[str]:
    """What there is of steps, ranks or sides."""
    recordings = [one.recording for one in session.opened]
    if what == "step":
        numbers = {step for one in recordings for rank in one.ranks.values() for step in rank.steps}
        return list(map(str, sorted(numbers)))
    names = {name: None for one in recordings for name in one.ranks}
    return list(names) if what == "rank" else [one.side for one in session.opened]


def _values(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    session, what = context.find_object(Session), context.params.get("what")
    known = [*_known(session, what), "all"] if session is not None and what else []
    return [one for one in known if one.startswith(typed)]


@click.command("use")
@click.argument("what", type=click.Choice(["step", "rank", "side"]), required=False)
@click.argument("value", required=False, metavar="[N|RANK|SIDE|all]", shell_complete=_values)
@click.pass_obj
def use(session: Session, what: str | None, value: str | None) -> None:
    """Look at one step, rank or side only, or at `all` again.

    \b
    use step 1
    use rank rank0
    use side candidate
    use step all
    """
    if what is not None and value is None:
        raise UsageError(f"use {what}: give a {what}, or all")
    if what is not None and value not in (None, "all", *_known(session, what)):
        raise UsageError(
            f"no {what} {value}; there is {', '.join(_known(session, what)) or 'none'}"
        )
    if what is not None and value is not None:
        chosen = None if value == "all" else value
        setattr(session, what, int(chosen) if chosen and what == "step" else chosen)
    looked_at = {"step": session.step, "rank": session.rank, "side": session.side}
    click.echo(", ".join(f"{key} {'all' if it is None else it}" for key, it in looked_at.items()))
