"""String literals in source text: their pieces, and what lies between the braces of f-strings.

`ast` gives one position for a string that is written in several pieces, and before Python 3.12 wrong ones for what an
f-string evaluates; so the pieces are read from the text itself, in the same way under every version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockstep_migrate.plan import Span

_OPENING = re.compile(r"([A-Za-z]{0,2})(\"\"\"|'''|\"|')")
_BETWEEN = re.compile(r"(?:\s|\\\r?\n|#[^\r\n]*)*")
_NAMED_CHARACTER = re.compile(r"\\N\{[^{}]*\}")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an f-string's body: literal text, or an expression without its braces.

    span: The literal text, or the expression.
    field: For an expression the whole field with its braces, else `None`.
    plain: Whether an expression has no conversion, format or `=`.
    """

    span: Span
    field: Span | None = None
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """One quoted piece of a string literal."""

    span: Span
    prefix: str
    body: Span
    parts: tuple[Part, ...]
    """Literal text and expressions; a plain string has one part, its body."""

    @property
    def formatted(self) -> bool:
        """Whether it is an f-string."""
        return "f" in self.prefix.lower()


class LiteralError(ValueError):
    """The text at this place is no string literal."""


def pieces_of(text: str, span: Span) -> tuple[Piece, ...]:
    """The quoted pieces that make up the literal at `span`, in order.

    Raises LiteralError if what stands there is not a sequence of string literals.
    """
    found, position = [], span.start
    while position < span.end:
        piece = _piece(text, position)
        found.append(piece)
        between = _BETWEEN.match(text, piece.span.end)
        position = between.end() if between else piece.span.end
    return tuple(found)


def _piece(text: str, start: int) -> Piece:
    opening = _OPENING.match(text, start)
    if not opening:
        raise LiteralError(f"no string literal at character {start}")
    prefix, quote = opening.groups()
    body_start = opening.end()
    parts: tuple[Part, ...]
    if "f" in prefix.lower():
        parts, body_end = _formatted(text, body_start, quote, raw="r" in prefix.lower())
    else:
        body_end = _closing_quote(text, body_start, quote)
        parts = (Part(Span(body_start, body_end)),)
    return Piece(Span(start, body_end + len(quote)), prefix, Span(body_start, body_end), parts)


def _closing_quote(text: str, position: int, quote: str) -> int:
    while position < len(text):
        if text[position] == "\\":
            position += 2
        elif text.startswith(quote, position):
            return position
        else:
            position += 1
    raise LiteralError("a string literal does not end")


def _formatted(text: str, start: int, quote: str, *, raw: bool) -> tuple[tuple[Part, ...], int]:
    parts: list[Part] = []
    literal = position = start
    while position < len(text):
        if text.startswith(quote, position):
            parts += _literal(literal, position)
            return tuple(parts), position
        named = None if raw else _NAMED_CHARACTER.match(text, position)
        if named:
            position = named.end()
            continue
        escaped = text[position] == "\\" and not text.startswith("\\{", position)
        if escaped or text.startswith(("{{", "}}"), position):
            position += 2
        elif text[position] == "{":
            parts += _literal(literal, position)
            field, position = _field(text, position, quote)
            parts += field
            literal = position
        else:
            position += 1
    raise LiteralError("an f-string does not end")


def _literal(start: int, end: int) -> list[Part]:
    return [Part(Span(start, end))] if end > start else []


def _field(text: str, start: int, quote: str) -> tuple[list[Part], int]:
    """The parts of a replacement field that starts at its brace, and where the field ends."""
    stop = _expression_end(text, start + 1)
    expression = text[start + 1 : stop]
    debug = re.search(r"(?<![=!<>])=\s*$", expression)
    length = debug.start() if debug else len(expression)
    inner: list[Part] = []
    position = stop
    if text.startswith("!", position):
        position += 2
    if text.startswith(":", position):
        inner, position = _format_spec(text, position + 1, quote)
    if not text.startswith("}", position):
        raise LiteralError("a replacement field of an f-string does not end")
    plain = text[stop] == "}" and debug is None
    own = Part(Span(start + 1, start + 1 + length), Span(start, position + 1), plain)
    return [own, *inner], position + 1


def _format_spec(text: str, position: int, quote: str) -> tuple[list[Part], int]:
    parts: list[Part] = []
    while position < len(text) and text[position] != "}":
        if text.startswith(quote, position):
            raise LiteralError("a format of an f-string does not end")
        if text[position] == "{":
            inner, position = _field(text, position, quote)
            parts += inner
        else:
            position += 1
    return parts, position


def _expression_end(text: str, position: int) -> int:
    """Where the expression of a field ends: before its conversion, its format or its brace."""
    open_brackets: list[str] = []
    while position < len(text):
        character = text[position]
        if character in "\"'":
            position = _nested_string_end(text, position)
            continue
        if open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        elif character in _CLOSING:
            open_brackets.append(_CLOSING[character])
        elif not open_brackets and (
            character in "}:" or (character == "!" and text[position + 1 : position + 2] != "=")
        ):
            return position
        position += 1
    raise LiteralError("an expression of an f-string does not end")


def _nested_string_end(text: str, quote_at: int) -> int:
    start = quote_at
    while start > 0 and quote_at - start < 2 and text[start - 1] in "rRbBfFuUtT":
        start -= 1
    return _piece(text, start).span.end
