"""The expressions of f-strings with their right places, which `ast` gives wrong before Python 3.12."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep_migrate.engine.literals import Piece
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.plan import Span


@dataclass(slots=True)
class Values:
    """The values of an f-string.

    values: Texts and replacement fields in order, those inside formats too; empty where the text cannot be read.
    spans: The place of each of their nodes.
    """

    values: list[ast.expr] = field(default_factory=list)
    spans: dict[ast.AST, Span] = field(default_factory=dict)

    def add_text(self, text: str, span: Span) -> None:
        """Append literal text."""
        value = ast.Constant(text)
        self.spans[value] = span
        self.values.append(value)

    def add_field(self, expression: ast.expr, span: Span) -> None:
        """Append what a field evaluates."""
        value = ast.FormattedValue(expression, -1, None)
        self.spans[value] = span
        self.values.append(value)


def values_of(text: str, pieces: Iterable[Piece]) -> Values:
    """Read the values of an f-string from the text of a module."""
    found = Values()
    for piece in pieces:
        for part in piece.parts:
            inside = text[part.span.start : part.span.end]
            if part.field is None:
                found.add_text(inside, part.span)
            elif inside.isidentifier() and not keyword.iskeyword(inside):
                name = ast.Name(inside, ast.Load())
                found.spans[name] = part.span
                found.add_field(name, part.span)
            elif not _add_parsed(found, inside, part.span):
                return Values()
    return found


def _add_parsed(found: Values, inside: str, span: Span) -> bool:
    """Append an expression; false where it is none."""
    bracketed = f"({inside}\n)"
    try:
        tree = ast.parse(bracketed, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    source = SourceText(b"", bracketed, "utf-8")
    for child in ast.walk(tree.body):
        if hasattr(child, "end_lineno"):
            found.spans[child] = _span_of(source, child).moved(span.start - 1)
    found.add_field(tree.body, span)
    return True


def _span_of(source: SourceText, node: ast.AST) -> Span:
    """The place of a node in a text of its own."""
    return Span(
        _offset(source, node.lineno, node.col_offset),  # type: ignore[attr-defined]
        _offset(source, node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
    )


def _offset(source: SourceText, line: int, column: int) -> int:
    start = source.line_starts[line - 1]
    line_text = source.text[start : start + column]
    return start + len(line_text.encode()[:column].decode("utf-8", "ignore"))
