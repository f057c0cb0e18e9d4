"""Verdicts, notes, gaps and reasons are data: no code looks into their sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep.core.content_notes import Note, NoteKind, note_of

SOURCE = Path(lockstep.__file__).parent
MEMBERS = Path(__file__).parents[2].glob("packages/*/src")
WRITERS = ("core/content_notes.py", "core/manifest.py")
"""They give what a recording keeps as text, and read it again."""
OF_OTHERS = ("lockstep_migrate/", "wings/report/verdict_area.py")
"""The first has words of other people's scripts and tables; the second gives sentences a capital letter."""

SENTENCES = frozenset({
    "headline", "sentence", "sentences", "note", "notes", "remark", "remarks", "reason", "reasons", "words", "why",
    "gap", "not_compared", "crashes", "endings", "unclear", "ended_by", "stopped_because", "lines_below",
    "origin_words",
})  # fmt: skip
"""Names under which sentences are held, and functions that give some."""

LOOKING = frozenset({
    "startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "split", "rsplit", "find",
    "index", "count", "match", "search", "fullmatch", "findall", "finditer",
})  # fmt: skip


_NAMED, _LOOKS = rf"\b(?:{'|'.join(SENTENCES)})\b", rf"\b(?:{'|'.join(LOOKING)})\("
_MAY_READ = re.compile(
    rf"{_NAMED}[^\n]{{0,40}}\.{_LOOKS}|{_LOOKS}[^()]*(?:str\([^()]*)?{_NAMED}"
    rf"|[\"']\s+(?:not\s+)?in\s[^:\n]*{_NAMED}|{_NAMED}[^\n]*[=!]=\s*[\"']"
)
"""Which files are worth parsing: all of them take seconds."""


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SENTENCES
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _is_sentence(inner)
        case ast.Call(func=function):
            return _is_sentence(function)
        case ast.Subscript(value=inner):
            return _is_sentence(inner)
        case _:
            return False


def reads(code: str) -> Iterator[int]:
    """Lines that look into a sentence."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args) if attr in LOOKING:
                blanks = (
                    attr == "split" and not args
                )  # `" ".join(text.split())` puts it on one line
                if (_is_sentence(value) and not blanks) or any(map(_is_sentence, args)):
                    yield node.lineno
            case ast.Compare(left=ast.Constant(value=str(text)), comparators=[right]):
                if text and _is_sentence(right):
                    yield node.lineno
            case ast.Compare(left=left, comparators=[ast.Constant(value=str(text))]):
                if text and _is_sentence(left):
                    yield node.lineno
            case _:
                pass


def test_no_code_looks_into_a_sentence_of_lockstep() -> None:
    found = [
        f"{name}:{line}"
        for root in (SOURCE, *MEMBERS)
        for path in sorted(root.rglob("*.py"))
        if (name := path.relative_to(root).as_posix()) not in WRITERS
        and not name.startswith(OF_OTHERS)
        and _MAY_READ.search(text := path.read_text("utf-8"))
        for line in reads(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'found.headline.startswith("DIVERGED")',
        '"no partner" in found.not_compared[0]',
        're.search("at step", str(origin.reason))',
        'gap.reason.partition(":")[0]',
        'record.content.note == "memory"',
        'headline(found).split(": ")',
    ],
)
def test_looking_into_a_sentence_is_found(code: str) -> None:
    assert _MAY_READ.search(code)
    assert list(reads(code)) == [1]


@pytest.mark.parametrize(
    "code",
    [
        '" ".join(why.split())',
        "gap.what == ORDER",
        "note.kind is NoteKind.PART",
        "not found.headline",
        'why != ""',
    ],
)
def test_what_asks_data_is_not(code: str) -> None:
    assert list(reads(code)) == []


@pytest.mark.parametrize(
    "note",
    [
        Note(NoteKind.UNWRITTEN),
        Note(NoteKind.UNCOUNTED),
        Note(NoteKind.FILE_MISSING, "a: b.npy"),
        Note(NoteKind.PART, "50, 32", "Shard(dim=0), Replicate()", "dp=2, tp=4"),
        Note(NoteKind.JOINED, "b s[tp] f"),
        Note(NoteKind.COPIES_DIFFER, "replicated"),
        Note(NoteKind.COPIES_APART, "inf"),
        Note(NoteKind.ADDED_UP, 4, "1.500e-03"),
        Note(NoteKind.OTHER, "its file is of fc by its header"),
        Note(NoteKind.OTHER, ""),
    ],
)  # fmt: skip
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    assert note_of(str(note)) == note


@pytest.mark.parametrize(
    "text", ["copies apart by ten", "part of (a): b on mesh (c)", "added up of x"]
)
def test_a_note_with_numbers_that_are_none_is_any_text(text: str) -> None:
    assert note_of(text) == Note(NoteKind.OTHER, text)
