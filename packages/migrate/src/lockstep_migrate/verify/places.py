"""From a line of a migrated file back to what was migrated there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.plan import Edit, FilePlan, Outcome, Row, Span, rows_of


@dataclass(frozen=True, slots=True)
class Behind:
    """A mention and the lines of the migrated text that came of it, from 1, the last one included."""

    row: Row
    first_line: int
    last_line: int

    def distance(self, line: int) -> int:
        """Number of lines from the mention to a line; 0 on it."""
        return max(self.first_line - line, line - self.last_line, 0)


class MigratedFile:
    """A migrated file that can be asked what lies behind its lines.

    Mentions that were kept explain nothing and are left out.

    file: What became of the file.
    """

    def __init__(self, file: FilePlan) -> None:
        edits = file.edits
        body = file.migrated()[len(file.source.bom) :]
        self._text = body.decode(file.source.encoding)
        self._lines = SourceText(body, self._text, file.source.encoding)
        self._behind = tuple(
            Behind(row, *self._line_range(mention.span, edits))
            for mention, row in zip(
                sorted(file.mentions, key=lambda mention: mention.span), rows_of(file), strict=True
            )
            if mention.outcome is not Outcome.KEPT
        )
        self._added = tuple(self._line_range(edit.span, edits) for edit in file.additions)

    def on(self, line: int) -> tuple[Behind, ...]:
        """Mentions on a line, else those in the rest of the statement that the line belongs to."""
        exact = self._within(line, line)
        return exact or self._within(*_statement(self._text, line))

    def nearest(self, line: int) -> Behind | None:
        """The mention that is the fewest lines away, the earlier of two; None where the file has none."""
        return min(self._behind, key=lambda behind: behind.distance(line), default=None)

    def is_added(self, line: int) -> bool:
        """Whether a line lies in what migrating added to the file."""
        return any(first <= line <= last for first, last in self._added)

    def _within(self, first: int, last: int) -> tuple[Behind, ...]:
        return tuple(
            behind
            for behind in self._behind
            if behind.first_line <= last and behind.last_line >= first
        )

    def _line_range(self, span: Span, edits: Sequence[Edit]) -> tuple[int, int]:
        start, end = _moved(span, edits)
        # What ends with a line's end does not reach into the next line.
        last = max(start, end - 1)
        return self._lines.position(start)[0], self._lines.position(last)[0]


def _moved(span: Span, edits: Sequence[Edit]) -> tuple[int, int]:
    """Where a stretch of the text lies after edits in order, with what they put at its borders."""
    shift, start, end = 0, None, None
    for edit in edits:
        if start is None and edit.span.end >= span.start:
            start = min(span.start, edit.span.start) + shift
        if edit.span.start > span.end:
            break
        shift += len(edit.text) - (edit.span.end - edit.span.start)
        end = max(span.end, edit.span.end) + shift
    start = span.start + shift if start is None else start
    return start, max(start, span.end + shift if end is None else end)


def _statement(text: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost statement around a line; of a compound one its header only."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return line, line
    first, last = line, line
    waiting: list[ast.stmt] = list(module.body)
    while waiting:
        node = waiting.pop()
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            inner = [child for child in ast.walk(node) if isinstance(child, ast.stmt)][1:]
            start = min((child.lineno for child in inner), default=0)
            last = start - 1 if start > node.lineno else (node.end_lineno or node.lineno)
            first, waiting = node.lineno, [child for child in inner if child.lineno > node.lineno]
    return (first, last) if first <= line <= last else (line, line)
