"""String literals are read from the text itself: their pieces, and the fields of f-strings."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_migrate.engine.literals import LiteralError, pieces_of
from lockstep_migrate.plan import Span


def parts(text: str) -> list[tuple[str, bool]]:
    """Each stretch of a literal, and whether it is an expression."""
    return [
        (text[part.span.start : part.span.end], part.field is not None)
        for piece in pieces_of(text, Span(0, len(text)))
        for part in piece.parts
    ]


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        ("'cuda'", ["cuda"]),
        ("\"cu\" 'da'", ["cu", "da"]),
        ('"""a\n"b"""', ['a\n"b']),
        (r"'it\'s'", [r"it\'s"]),
        (r"r'\''", [r"\'"]),
        ("'a' # 'no'\n  'b'", ["a", "b"]),
        ("'a' \\\n 'b'", ["a", "b"]),
        ("'a' \\\r\n 'b'", ["a", "b"]),
        ("b'x' B'y'", ["x", "y"]),
        ("''", [""]),
        ("''''''", [""]),
    ],
)
def test_pieces_of_plain_strings(text: str, bodies: list[str]) -> None:
    pieces = pieces_of(text, Span(0, len(text)))
    assert [text[piece.body.start : piece.body.end] for piece in pieces] == bodies
    assert not any(piece.formatted for piece in pieces)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f'cuda:{rank}'", [("cuda:", False), ("rank", True)]),
        ("F'{a}{b}'", [("a", True), ("b", True)]),
        ("f'{{x}} {y}'", [("{{x}} ", False), ("y", True)]),
        ("f'{x!r:>{width}}'", [("x", True), ("width", True)]),
        ("f'{x=}'", [("x", True)]),
        ("f'{x == y}'", [("x == y", True)]),
        ("f'{x != y}'", [("x != y", True)]),
        ("f'{x <= y!s}'", [("x <= y", True)]),
        ("f'{d[\"}\"]}'", [('d["}"]', True)]),
        ("f'{f(a, {1: 2})}'", [("f(a, {1: 2})", True)]),
        ("f'{a[1:2]:3}'", [("a[1:2]", True)]),
        ("f'''{a\n}'''", [("a\n", True)]),
        ("f'{(lambda: 1)()}'", [("(lambda: 1)()", True)]),
        ("f'{t:%H:%M}'", [("t", True)]),
        (r"f'\{x}'", [("\\", False), ("x", True)]),
        (r"rf'\N{x}'", [(r"\N", False), ("x", True)]),
        (r"f'\N{BULLET}{x}'", [(r"\N{BULLET}", False), ("x", True)]),
        ("'a' f'{b}'", [("a", False), ("b", True)]),
        ("f''", []),
    ],
)
def test_parts_of_formatted_strings(text: str, expected: list[tuple[str, bool]]) -> None:
    assert parts(text) == expected


@pytest.mark.parametrize(
    ("text", "plain"),
    [("f'{x}'", True), ("f'{x!s}'", False), ("f'{x:d}'", False), ("f'{x=}'", False)],
)
def test_a_field_is_plain_without_conversion_format_and_equals(text: str, plain: bool) -> None:
    (piece,) = pieces_of(text, Span(0, len(text)))
    assert [part.plain for part in piece.parts] == [plain]


@pytest.mark.parametrize("text", ["cuda", "'open", "f'{x'", "f'{x!r'", "f'{x:", "f'{(x}'", "f'"])
def test_what_is_no_literal_is_said_so(text: str) -> None:
    with pytest.raises(LiteralError):
        pieces_of(text, Span(0, len(text)))


@given(st.text(alphabet="cuda:{}\\'\" \nxé%", max_size=24))
def test_a_literal_that_python_reads_is_read_to_its_end(body: str) -> None:
    text = repr(body)
    (piece,) = pieces_of(text, Span(0, len(text)))
    assert piece.span == Span(0, len(text))
    assert ast.literal_eval(text) == body


_EXPRESSIONS = st.sampled_from(["x", "x + 1", "f(x)", 'd["k"]', "x if y else z", "[1, 2][0]", "é"])
_SUFFIXES = st.sampled_from(["", "!r", ":>5", "!s:{w}", "="])
_TEXTS = st.text(alphabet="cuda: é%", max_size=6)


@given(st.lists(st.tuples(_TEXTS, _EXPRESSIONS, _SUFFIXES), min_size=1, max_size=4))
def test_the_expressions_of_an_f_string_are_those_python_sees(
    fields: list[tuple[str, str, str]],
) -> None:
    text = "f'" + "".join(f"{before}{{{code}{suffix}}}" for before, code, suffix in fields) + "'"
    ast.parse(text)
    found = [part for part, is_expression in parts(text) if is_expression and part != "w"]
    assert found == [code for _, code, _ in fields]
