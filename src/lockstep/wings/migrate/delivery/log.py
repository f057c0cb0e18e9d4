"""A migration as a log that a person reads from top to bottom: file by file, site by site."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.core.replacement import replacing
from lockstep.core.text import printable
from lockstep.core.version import VERSION
from lockstep.report.paragraphs import counted
from lockstep.wings.migrate.delivery.rows import Counts, counts_of, counts_of_plan
from lockstep.wings.migrate.engine.text import SourceText
from lockstep.wings.migrate.plan import (
    Edit,
    Failure,
    FilePlan,
    Mention,
    Plan,
    Span,
    after,
    merged,
    rows_of,
)


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
    # What the head gains is said above, and not again beside a site that it borders on.
    edits = merged(edit for mention in file.mentions for edit in mention.edits)
    mentions = sorted(file.mentions, key=lambda mention: mention.span)
    for mention, row in zip(mentions, rows_of(file), strict=True):
        yield f"  {row.line}:{row.column} {row.outcome.value} [{row.rule}] {printable(row.reason)}"
        yield from _site_lines(file, mention, edits)


def _site_lines(file: FilePlan, mention: Mention, edits: Sequence[Edit]) -> Iterator[str]:
    """The lines on which a site stands, before and after; of a very long line what is around the site."""
    lines = _around(file.source, mention.span, edits)
    before = file.source.text[lines.start : lines.end]
    if not mention.outcome.is_change:
        yield from _marked("   ", before)
        if mention.replacement:
            yield f"    instead: {printable(mention.replacement)}"
        return
    yield from _marked("  -", before)
    yield from _marked("  +", after(file.source.text, lines, edits))


_LONGEST_LINE = 400
"""Characters up to which a line is written whole."""

_AROUND = 20
"""Characters on either side of a site that are written of a longer one."""


def _around(source: SourceText, span: Span, edits: Sequence[Edit]) -> Span:
    """The whole lines of a site; where one of them is very long, the site with what is beside it."""
    lines = _whole_lines(source, span)
    if max(map(len, source.text[lines.start : lines.end].splitlines()), default=0) <= _LONGEST_LINE:
        return lines
    start, end = max(lines.start, span.start - _AROUND), min(lines.end, span.end + _AROUND)
    for edit in edits:  # none is cut in two
        if edit.span.start < start < edit.span.end:
            start = edit.span.start
        if edit.span.start < end < edit.span.end:
            end = edit.span.end
    return Span(start, end)


def _whole_lines(source: SourceText, span: Span) -> Span:
    end = source.next_line(max(span.start, span.end - 1))
    return Span(source.line_start(span.start), end)


def _marked(mark: str, text: str) -> Iterator[str]:
    for line in textwrap.dedent(text.expandtabs()).splitlines():
        yield f"  {mark} {printable(line)}".rstrip()
