"""The rows of a migration's reports, independent of any file format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep_migrate.advice import PREFIX
from lockstep_migrate.plan import FilePlan, Mention, Outcome, Plan, Row, row_of, rows_of

HEAD = "file/head"
"""Rule of what a file gains at its head for all its sites: imports, helpers."""

NEW_FILE = "file/new"
"""Rule of a file that migrating adds."""

UNREADABLE = "file/unreadable"
"""Rule of a file that could not be read as what it claims to be."""

RULES = {
    HEAD: "What the changes of a file share stands once at its head: an import, a device variable, a helper.",
    NEW_FILE: "A file that migrating adds, such as a launch script.",
    UNREADABLE: "The file could not be read as what its name says, so it stays as it is; all other files are done.",
}
"""What the rules mean that belong to whole files."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sites by what became of them; advice that is listed only is counted apart."""

    rewritten: int = 0
    differing: int = 0
    """Rewritten, with another meaning; not among `rewritten`."""
    listed: int = 0
    kept: int = 0
    advised: int = 0

    @property
    def sites(self) -> int:
        """All of them."""
        return self.rewritten + self.differing + self.listed + self.kept + self.advised


def counts_of(file: FilePlan) -> Counts:
    """The sites of one file."""
    return _counts(file.mentions)


def counts_of_plan(plan: Plan) -> Counts:
    """The sites of all files."""
    return _counts([mention for file in plan.files for mention in file.mentions])


def _counts(mentions: Sequence[Mention]) -> Counts:
    found = Counter(mention.outcome for mention in mentions)
    advised = sum(
        mention.outcome is Outcome.LISTED and is_advice(mention.rule) for mention in mentions
    )
    listed = found[Outcome.LISTED] - advised
    rewritten, differing = found[Outcome.REWRITTEN], found[Outcome.DIFFERS]
    return Counts(rewritten, differing, listed, found[Outcome.KEPT], advised)


def listed_rows(plan: Plan) -> list[Row]:
    """The sites that need a person, in the order of files and lines."""
    return [row for row in _listed(plan) if not is_advice(row.rule)]


def differing_rows(plan: Plan) -> list[Row]:
    """The sites that were rewritten and do not mean the same, in the order of files and lines."""
    return [row for row in plan.rows() if row.outcome is Outcome.DIFFERS]


def advice_rows(plan: Plan) -> list[Row]:
    """The places where a faster form exists that was not written."""
    return [row for row in _listed(plan) if is_advice(row.rule)]


CELL_CHARACTERS = 120
"""How much of a site's text reports show."""


def cut(text: str, characters: int = CELL_CHARACTERS) -> str:
    """A site's text on one line, and no longer than so many characters."""
    words = " ".join(text[: 4 * characters].split())
    return words if len(words) <= characters else f"{words[: characters - 3]}..."


def is_advice(rule: str) -> bool:
    """Whether a rule says what would be faster, not what would be wrong."""
    return rule.startswith(PREFIX)


def _listed(plan: Plan) -> Iterator[Row]:
    return (row for row in plan.rows() if row.outcome is Outcome.LISTED)


def edit_rows(file: FilePlan) -> Iterator[Row]:
    """One row a site, and one for each edit at the head of the file, in the order of the text."""
    rows = [*_head_rows(file), *rows_of(file)]
    yield from sorted(rows, key=lambda row: (row.line, row.column))


def _head_rows(file: FilePlan) -> Iterator[Row]:
    for edit in file.additions:
        reason = "what the changes of this file share"
        yield row_of(file, Mention(HEAD, Outcome.REWRITTEN, edit.span, reason), edit.text)
