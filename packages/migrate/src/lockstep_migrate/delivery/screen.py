"""A migration on one screen of a terminal: what changes, what needs a person, what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from lockstep.terminal import (
    Column,
    OutputConsole,
    add_line,
    add_more,
    add_paragraph,
    add_table,
    counted,
    printable,
)
from lockstep_migrate.delivery.rows import (
    Counts,
    advice_rows,
    counts_of,
    counts_of_plan,
    differing_rows,
    listed_rows,
)
from lockstep_migrate.delivery.tables import api_of
from lockstep_migrate.plan import Failure, Outcome, Plan, Row

FILES = 12
GROUPS = 12
ADVICE = 3
EXAMPLE_CHARACTERS = 48
FAILURES = 8


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where the result of a migration went.

    place: Where the migrated files are; empty where nothing was written.
    written: What else was written, reports first.
    unsupported: The report with all sites that need a person; empty where there is none.
    changes: The report with all sites; empty where there is none.
    next_command: What to type next.
    prefix: What makes a plan's path one that is found from here: `project/`.
    not_read: What was passed over, each with its reason.
    """

    place: str = ""
    written: tuple[str, ...] = ()
    unsupported: str = ""
    changes: str = ""
    next_command: str = ""
    prefix: str = ""
    not_read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Sites that need a person for the same reason."""

    reason: str
    replacement: str
    rows: tuple[Row, ...]

    @property
    def example(self) -> str:
        """The shortest of what they use, and whether there is more than that."""
        found = sorted({api_of(row) for row in self.rows}, key=lambda api: (len(api), api))
        more = " and the like" if len(found) > 1 else ""
        return f"{_cut(found[0])}{more}"


def render_migration(plan: Plan, delivery: Delivery, *, show_all: bool = False) -> Text:
    """Lay a migration out as text, at most 100 columns but for paths and names."""
    text = Text()
    _add_headline(text, plan, delivery)
    _add_counts(text, plan)
    _add_sites(text, plan, delivery, show_all=show_all)
    _add_failures(text, plan, delivery.prefix, show_all=show_all)
    _add_not_read(text, delivery, show_all=show_all)
    _add_files(text, plan, delivery.prefix, show_all=show_all)
    _add_written(text, plan, delivery)
    text.rstrip()
    return text


def print_migration(plan: Plan, delivery: Delivery, *, show_all: bool = False) -> None:
    """Print what `render_migration` lays out to standard output, in colour on a terminal only."""
    text = render_migration(plan, delivery, show_all=show_all)
    OutputConsole().print(text, soft_wrap=True, highlight=False)


# What a listed place does if nobody looks at it, the worst first.
_HARM = (
    ("names/", "methods/", "devices/", "strings/library"),  # fails, or trains elsewhere
    ("strings/", "shell/value", "shell/variable", "keywords/", "kernels/", "distributed/"),
    ("native/", "config/", "shell/", "framework/", "tensorflow/", "user/"),
    ("leftovers/", "notebook/"),
)


def _harm(rule: str) -> int:
    return next((at for at, rules in enumerate(_HARM) if rule.startswith(rules)), len(_HARM))


def groups_of(rows: Iterable[Row]) -> list[Group]:
    """Sites by reason, the most harmful first, then the most frequent, else in the order of the text."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.reason, row.replacement), []).append(row)
    groups = [Group(reason, instead, tuple(rows)) for (reason, instead), rows in found.items()]
    return sorted(groups, key=lambda group: (_harm(group.rows[0].rule), -len(group.rows)))


def _add_headline(text: Text, plan: Plan, delivery: Delivery) -> None:
    counts, changed = counts_of_plan(plan), sum(file.changed for file in plan.files)
    style = "bold yellow" if counts.listed or plan.failures else "bold green"
    files = counted(len(plan.files), "file")
    if not plan.files and not plan.failures:
        text.append("NOTHING TO MIGRATE", style=style)
        add_line(text, ": no file was found")
    elif not counts.sites and not plan.new_files and not plan.failures:
        text.append("NOTHING TO MIGRATE", style=style)
        add_line(text, f": nothing in {files} is tied to CUDA")
    elif delivery.place:
        text.append("MIGRATED", style=style)
        add_line(text, f" to {plan.target} in {delivery.place}: {changed} of {files} changed")
    else:
        text.append("PREVIEW", style=style)
        add_line(text, f" for {plan.target}: {changed} of {files} would change; nothing is written")


def _add_counts(text: Text, plan: Plan) -> None:
    counts = counts_of_plan(plan)
    for count, words in (
        (counts.rewritten, "rewritten"),
        (counts.differing, "rewritten with another meaning"),
        (counts.listed, "left to a person"),
        (counts.advised, "advice: a faster form exists"),
        (counts.kept, "kept: names of your own, prose, code that runs on any device"),
        (len(plan.new_files), "added: new files"),
        (len(plan.failures), "failed: files that could not be read"),
    ):
        if count:
            add_line(text, f"{count:>8}  {words}")


def _add_sites(text: Text, plan: Plan, delivery: Delivery, *, show_all: bool) -> None:
    """The sites by reason: those that need a person, advice, and with all of them what was kept."""
    sections = [
        ("Needs a person", listed_rows(plan), GROUPS, delivery.unsupported),
        ("Rewritten, and means something else", differing_rows(plan), GROUPS, delivery.changes),
        ("Advice (--advice-apply writes what is equal)", advice_rows(plan), ADVICE, ""),
    ]
    if show_all:
        kept = [row for row in plan.rows() if row.outcome is Outcome.KEPT]
        sections.append(("Kept", kept, len(kept), ""))
    for title, rows, most, report in sections:
        groups = groups_of(rows)
        if groups:
            text.append(f"\n{title}\n", style="bold")
        shown = groups if show_all else groups[:most]
        for group in shown:
            _add_group(text, group, delivery.prefix, show_all=show_all)
        _add_rest(text, groups[len(shown) :], report)


def _add_group(text: Text, group: Group, prefix: str, *, show_all: bool) -> None:
    """One line a group: how many, of what, where, why, and what to use instead; every place with all of them."""
    places = list(dict.fromkeys(f"{prefix}{row.file}:{row.line}" for row in group.rows))
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    where = "" if show_all else f" ({places[0]}{more})"
    instead = f" -> {group.replacement}" if group.replacement else ""
    add_paragraph(text, f"{len(group.rows)} x {group.example}: {group.reason}{instead}{where}")
    for row in group.rows if show_all else ():
        add_line(text, f"      {prefix}{row.file}:{row.line}  {api_of(row)}")


def _add_rest(text: Text, groups: Sequence[Group], report: str) -> None:
    """Say how many places are not shown, and where they are."""
    count = sum(len(group.rows) for group in groups)
    if count:
        where = f"in {report}" if report else "with --all"
        add_line(text, f"  and {counted(count, 'more place')} {where}")


def _add_failures(text: Text, plan: Plan, prefix: str, *, show_all: bool) -> None:
    if not plan.failures:
        return
    text.append("\nCould not be read\n", style="bold red")
    shown = plan.failures if show_all else plan.failures[:FAILURES]
    for failure in shown:
        add_paragraph(text, printable(f"{prefix}{_place_of(failure)}: {failure.reason}"))
    add_more(text, len(plan.failures) - len(shown), indent="  ", more="with --all")


def _place_of(failure: Failure) -> str:
    """Where a file failed: `train.py:3`, or the file alone."""
    return f"{failure.path}:{failure.line}" if failure.line else str(failure.path)


def _add_not_read(text: Text, delivery: Delivery, *, show_all: bool) -> None:
    if not delivery.not_read:
        return
    text.append("\nNot read\n", style="bold")
    if not show_all:
        count = counted(len(delivery.not_read), "path")
        add_line(
            text,
            f"  {count}: caches, environments, links, data or earlier output; --all names each",
        )
        return
    for sentence in delivery.not_read:
        add_paragraph(text, sentence)


def _add_files(text: Text, plan: Plan, prefix: str, *, show_all: bool) -> None:
    """The files with sites; those that need a person first, then those with most changes."""
    found = [(file, counts_of(file)) for file in plan.files]
    found = [(file, counts) for file, counts in found if counts.sites]
    found.sort(key=lambda pair: (-pair[1].listed, -_changed(pair[1]), str(pair[0].path)))
    if not found:
        return
    text.append("\nFiles\n", style="bold")
    rows = [
        (_changed(counts), counts.listed, counts.kept, f"{prefix}{file.path}")
        for file, counts in found
    ]
    limit = None if show_all else FILES
    add_table(text, _FILE_COLUMNS, rows, limit=limit, indent="  ", more="with --all")


def _changed(counts: Counts) -> int:
    return counts.rewritten + counts.differing


_FILE_COLUMNS = (
    Column("rewritten", right=True),
    Column("listed", right=True),
    Column("kept", right=True, least=6),
    Column(""),
)


def _add_written(text: Text, plan: Plan, delivery: Delivery) -> None:
    for new in plan.new_files:
        text.append("\nNew\n" if new is plan.new_files[0] else "", style="bold")
        add_paragraph(text, f"{new.path}: {new.reason}")
    if delivery.written:
        text.append("\nWrote\n", style="bold")
        for path in delivery.written:
            add_line(text, f"  {path}")
    if delivery.next_command:
        text.append("\nNext\n", style="bold")
        add_line(text, f"  {delivery.next_command}")


def _cut(words: str) -> str:
    return words if len(words) <= EXAMPLE_CHARACTERS else f"{words[: EXAMPLE_CHARACTERS - 3]}..."
