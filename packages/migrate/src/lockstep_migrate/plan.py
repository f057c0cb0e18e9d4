"""The result of reading sources: which places name the old device, and what becomes of each."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from lockstep_migrate.engine.text import SourceText


class Outcome(enum.Enum):
    """The outcome for a mention."""

    REWRITTEN = "rewritten"
    """The file was changed for it."""
    DIFFERS = "rewritten, differs"
    """The file was changed for it, and what stands there now does not mean the same: the reason says how."""
    LISTED = "listed"
    """It needs a person: no equal exists on the target, or its meaning cannot be told from the source."""
    KEPT = "kept"
    """It needs nothing: a name of the user's own, prose, or code that already runs on any device."""

    @property
    def is_change(self) -> bool:
        """Whether the file was changed for it."""
        return self in (Outcome.REWRITTEN, Outcome.DIFFERS)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of a text, in characters: `text[start:end]`."""

    start: int
    end: int

    def moved(self, by: int) -> Span:
        """The stretch that lies so many characters further on."""
        return Span(self.start + by, self.end + by)

    def contains(self, other: Span) -> bool:
        """Whether all of `other` lies within this span."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace `span` by `text`; an empty span inserts."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Mention:
    """One place that names the old device.

    rule: Identifier of the rule that decided, such as `names/rename`; `lockstep migrate rules` explains it.
    outcome: What became of it.
    span: The expression or statement to show, in characters of the file's text.
    reason: Why, in words.
    replacement: What to write instead, for a listed mention; empty where nobody knows one.
    edits: Changes to the text; empty unless rewritten.
    """

    rule: str
    outcome: Outcome
    span: Span
    reason: str
    replacement: str = ""
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The plan for one file.

    path: The file, relative to the root that was given (its bare name where a file was given).
    source: Its text as read.
    mentions: In the order of the text.
    additions: Edits that belong to no single mention: imports and helpers at the head of the file.
    """

    path: PurePosixPath
    source: SourceText
    mentions: tuple[Mention, ...] = ()
    additions: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Every edit in order, those inside a larger one left out."""
        return merged(
            [edit for mention in self.mentions for edit in mention.edits] + list(self.additions)
        )

    @property
    def changed(self) -> bool:
        """Whether the file's bytes change."""
        return self.migrated() != self.source.data

    def migrated(self) -> bytes:
        """The file's bytes after every edit; all bytes outside the edits are as they were."""
        edits = self.edits
        return self.source.encode(apply(self.source.text, edits)) if edits else self.source.data


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be read as what it claims to be; it stays as it is."""

    path: PurePosixPath
    reason: str
    line: int = 0
    """1-based; 0 where no line is known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for all given files, in the order of their paths."""

    target: str
    files: tuple[FilePlan, ...] = ()
    failures: tuple[Failure, ...] = ()
    new_files: tuple[NewFile, ...] = ()

    def rows(self) -> Iterator[Row]:
        """One row a mention, in the order of files and lines."""
        for file in self.files:
            yield from rows_of(file)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that migrating adds, such as a launch script."""

    path: PurePosixPath
    data: bytes
    reason: str
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A mention as reports show it. Lines and columns count from 1, columns in characters."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    rule: str
    outcome: Outcome
    before: str
    after: str
    reason: str
    replacement: str


def rows_of(file: FilePlan) -> Iterator[Row]:
    """The rows of one file, in the order of its text."""
    edits = file.edits
    starts = [edit.span.start for edit in edits]
    for mention in sorted(file.mentions, key=lambda mention: mention.span):
        yield row_of(file, mention, _after(file.source.text, mention.span, edits, starts))


def row_of(file: FilePlan, mention: Mention, rewritten: str) -> Row:
    """The row of one mention; `rewritten` is what stands there if it is."""
    line, column = file.source.position(mention.span.start)
    end_line, end_column = file.source.position(mention.span.end)
    before = file.source.text[mention.span.start : mention.span.end]
    return Row(
        file=str(file.path),
        line=line,
        column=column,
        end_line=end_line,
        end_column=end_column,
        rule=mention.rule,
        outcome=mention.outcome,
        before=before,
        after=rewritten if mention.outcome.is_change else before,
        reason=mention.reason,
        replacement=mention.replacement,
    )


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Edits in the order of the text, each once, without those that a larger one swallows.

    Raises ValueError if two edits overlap and neither contains the other: a fault of a rule.
    """
    kept: list[Edit] = []
    insertions: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.span.start, -edit.span.end)):
        last = kept[-1].span if kept else Span(0, 0)
        if edit.span.start >= last.end:
            (insertions if edit.span.start == edit.span.end else kept).append(edit)
        elif edit.span == Span(last.start, last.start):
            insertions.append(edit)
        elif not last.contains(edit.span):
            raise ValueError(f"edits overlap: {kept[-1]} and {edit}")
    # What is inserted at the start of a replaced stretch comes before it.
    return tuple(sorted(insertions + kept, key=lambda edit: (edit.span.start, edit.span.end)))


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that are in order and do not overlap."""
    parts, position = [], 0
    for edit in edits:
        parts += [text[position : edit.span.start], edit.text]
        position = edit.span.end
    parts.append(text[position:])
    return "".join(parts)


def after(text: str, span: Span, edits: Sequence[Edit]) -> str:
    """A stretch of the text after those edits, given in order, that lie within it."""
    return _after(text, span, edits, [edit.span.start for edit in edits])


def _after(text: str, span: Span, edits: Sequence[Edit], starts: Sequence[int]) -> str:
    near = edits[bisect.bisect_left(starts, span.start) : bisect.bisect_right(starts, span.end)]
    inside = [
        Edit(edit.span.moved(-span.start), edit.text) for edit in near if span.contains(edit.span)
    ]
    return apply(text[span.start : span.end], inside)
