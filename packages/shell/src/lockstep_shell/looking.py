"""Commands that show a recording: the module tree, sites, names, numbers that are not finite."""

from __future__ import annotations

import click
import polars as pl

from lockstep import options
from lockstep.errors import CorruptError, UsageError
from lockstep.recordings import Phase, Recording, Site, calls_matching, is_chosen, render_calls
from lockstep.terminal import Column, nearest_names, printable, spans, table_text
from lockstep_shell import places
from lockstep_shell.session import Opened, Session

_SITE = ("module", "op", "call", "phase")


@click.command("ls")
@places.argument("path", required=False)
@click.option("-n", "name", help="As find NAME.")
@click.option("-t", "kind", help="As find KIND, an operator.")
@click.pass_context
def list_modules(
    context: click.Context, path: tuple[str, ...], name: str | None, kind: str | None
) -> None:
    """List the modules below PATH and the operators in it, with counts of their calls.

    Before a recording is open, the recordings that there are.
    """
    session = context.ensure_object(Session)
    if name is not None or kind is not None:
        context.invoke(find, pattern=(name or "*",), operator=kind)
    elif not session.opened:
        click.echo(recordings_table(session))
    else:
        given = " ".join(path)
        module = "" if given in (".", "/", "(model)") else session.names.get(given, given)
        session.each(lambda one: _modules_text(_calls(one.recording, session), module, one))


def recordings_table(session: Session) -> str:
    """Return the recordings that can be opened."""
    if not session.entries:
        return "no recording is open, and none was found; `open PATH [PATH]` opens one or two"
    rows = [(one.name, *_facts(one.recording)) for one in session.entries if one.recording]
    lost = [f"{one.name} cannot be read: {one.why}" for one in session.entries if one.why]
    columns = Column("Recording"), Column("Command"), Column("Saved"), Column("Steps")
    hint = "`open NAME [NAME]` opens one, or a reference and a candidate"
    return "\n".join([table_text(columns, rows), *map(printable, lost), hint]).lstrip()


def _facts(recording: Recording) -> tuple[str, str, str]:
    ranks = recording.ranks.values()
    steps = sorted({step.index for rank in ranks for step in rank.manifest.steps})
    return (
        " ".join(recording.manifest.command),
        recording.manifest.options.save,
        spans(steps, 5) or "none",
    )


def _calls(recording: Recording, session: Session) -> pl.DataFrame:
    """Calls of the chosen step and rank, by rank, in order of time."""
    tables = [
        rank.call_table.sort("call_id")
        for name, rank in recording.ranks.items()
        if session.rank in (None, name)
    ]
    if not tables:
        raise UsageError(f"{recording.path}: nothing was recorded; {'; '.join(recording.missing)}")
    calls = pl.concat(tables)
    return calls if session.step is None else calls.filter(pl.col("step") == session.step)


def _modules_text(calls: pl.DataFrame, module: str, one: Opened) -> str:
    classes = _classes(calls, one.recording)
    if module and not any(path == module or path.startswith(f"{module}.") for path in classes):
        near = nearest_names(module, classes)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"{one.recording.path}: no module {module!r}{hint}")
    start = f"{module}." if module else ""
    names = {
        start + path.removeprefix(start).partition(".")[0]: None
        for path in classes
        if path.startswith(start) and path != module and path
    }
    made = calls.filter(pl.col("kind") != "module")
    inside = dict(made.group_by("module").len().iter_rows())
    modules = [
        (
            name,
            classes.get(name, ""),
            sum(n for path, n in inside.items() if f"{path}.".startswith(f"{name}.")),
        )
        for name in names
    ]
    own = made.filter(pl.col("module") == module)
    operators = own.group_by("op", "kind", maintain_order=True).len().iter_rows()
    head = f"{module or 'the model'} {classes.get(module, '')}".rstrip()
    tables = (
        table_text((Column("Module"), Column("Class"), Column("Calls in it", right=True)), modules),
        table_text((Column("Operator"), Column("Kind"), Column("Calls", right=True)), [*operators]),
    )
    return "\n".join([printable(head), *(text for text in tables if text)])


def _classes(calls: pl.DataFrame, recording: Recording) -> dict[str, str]:
    """Class by path of every module that is listed or called, in the order of the model."""
    found: dict[str, str] = {}
    for rank in recording.ranks.values():
        found |= dict(rank.module_table.select("module", "module_class").iter_rows())
    for path, name in (
        calls.select("module", "module_class").unique(maintain_order=True).iter_rows()
    ):
        found[path] = found.get(path) or name
    return found


@click.command("show")
@places.argument()
@click.pass_obj
def show_site(session: Session, site: tuple[str, ...]) -> None:
    """Show the calls of SITE: arguments, stack, every tensor with its statistics.

    SITE is a module path, a path above it, or an operator, with `*` and `?`, or a site as it is printed.
    """
    place = places.place_of(site, session)

    def told(one: Opened) -> str:
        rank = place.rank or session.rank
        calls = calls_matching(one.recording, place.pattern, step=session.step, rank=rank)
        return printable_lines(render_calls(calls))

    session.each(told)


def printable_lines(text: str) -> str:
    """Lines as a terminal may get them."""
    return "\n".join(map(printable, text.split("\n")))


@click.command("find")
@places.argument("pattern")
@click.option("--operator", help="Calls of this operator only, or of one whose name holds it.")
@options.limit
@click.pass_obj
def find(session: Session, pattern: tuple[str, ...], operator: str | None, limit: int) -> None:
    """Find sites that PATTERN matches, or whose name holds it."""
    place = places.place_of(pattern, session).pattern
    session.each(lambda one: _sites_text(one.recording, session, place, operator or "", limit))


def _sites_text(
    recording: Recording, session: Session, pattern: str, operator: str, limit: int
) -> str:
    counts = _calls(recording, session).group_by(_SITE, maintain_order=True).len().iter_rows()
    sites = [(_site(recording, *parts), count) for *parts, count in counts]
    found = [
        (str(site), count)
        for site, count in sites
        if (is_chosen(pattern, site) or pattern.lower() in str(site).lower())
        and operator.lower() in site.op.lower()
    ]
    if not found:
        calls_matching(recording, pattern)
        raise UsageError(f"{recording.path}: {pattern!r} matches no call of {operator}")
    table = table_text((Column("Site"), Column("Calls", right=True)), found[:limit])
    more = len(found) - limit
    return table + (f"\nand {more} more (--limit {len(found)})" if more > 0 else "")


def _site(recording: Recording, module: str, op: str, call: int, phase: str) -> Site:
    try:
        return Site(module, op, call, Phase(phase))
    except ValueError as error:
        raise CorruptError(recording.path, f"a call is malformed ({error})") from error
