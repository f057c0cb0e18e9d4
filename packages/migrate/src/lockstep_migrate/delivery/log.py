"""A migration as a log that a person reads from top to bottom: file by file, sites that are alike together."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lockstep.files import replacing
from lockstep.plugin import VERSION
from lockstep.terminal import counted, printable
from lockstep_migrate.delivery.rows import Counts, counts_of, counts_of_plan, cut
from lockstep_migrate.plan import Failure, FilePlan, Plan, rows_of


def write_migration_log(plan: Plan, path: Path) -> None:
    """Write what became of every file and every site.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with (
        replacing(path) as aside,
        aside.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.writelines(f"{line}\n" for line in log_lines(plan))


def log_lines(plan: Plan) -> Iterator[str]:
    """The lines of the log, without their ends."""
    counts = counts_of_plan(plan)
    yield f"lockstep {VERSION} migrate --to {plan.target}"
    yield (
        f"{counted(len(plan.files), 'file')} read,"
        f" {sum(file.changed for file in plan.files)} changed:"
        f" {counted(counts.rewritten, 'site')} rewritten,{_differing(counts)} {counts.listed} listed,"
        f" {counts.kept} kept"
    )
    for file in plan.files:
        yield from _file_lines(file)
    for new in plan.new_files:
        yield ""
        yield f"new file {printable(str(new.path))}: {printable(new.reason)}"
    for failure in plan.failures:
        yield ""
        yield f"failed {place_of(failure)}: {printable(failure.reason)}"


def _differing(counts: Counts) -> str:
    return f" {counts.differing} with another meaning," if counts.differing else ""


def place_of(failure: Failure) -> str:
    """Where a file failed: `train.py:3`, or the file alone."""
    return printable(f"{failure.path}:{failure.line}" if failure.line else str(failure.path))


def _file_lines(file: FilePlan) -> Iterator[str]:
    counts = counts_of(file)
    if not counts.sites and not file.changed:
        return
    yield ""
    yield (
        f"{printable(str(file.path))}: {counts.rewritten} rewritten,{_differing(counts)}"
        f" {counts.listed} listed, {counts.kept} kept"
    )
    for addition in file.additions:
        line, _ = file.source.position(addition.span.start)
        yield f"  {line} added at the head of the file"
        yield from _marked("  +", addition.text)
    yield from _site_lines(file)


def _site_lines(file: FilePlan) -> Iterator[str]:
    """The sites by what was decided and why; of each what stood there, what stands there and at which places."""
    # What the head gains is said above, and not again beside a site that it borders on.
    bare = replace(file, additions=())
    groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows_of(bare):
        head = (row.outcome.value, row.rule, row.reason, row.replacement)
        became = f" -> {cut(row.after)}" if row.outcome.is_change else ""
        places = groups.setdefault(head, {}).setdefault(cut(row.before) + became, [])
        places.append(f"{row.line}:{row.column}")
    for (outcome, rule, reason, replacement), found in groups.items():
        yield f"  {outcome} [{rule}] {printable(reason)}"
        if replacement:
            yield f"    instead: {printable(replacement)}"
        for text, places in found.items():
            yield f"    {printable(text)}: {', '.join(places)}"


def _marked(mark: str, text: str) -> Iterator[str]:
    for line in textwrap.dedent(text.expandtabs()).splitlines():
        yield f"  {mark} {printable(line)}".rstrip()
