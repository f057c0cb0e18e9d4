"""The JSON of a notebook by its characters: which string holds which part of which cell."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from lockstep_migrate.plan import Edit, Span

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u....|\\.", re.DOTALL
)


class NotebookError(ValueError):
    """The file is no notebook; `line` (from 1) says where, 0 where nobody knows."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Piece:
    """Code and the characters of the file that hold it, all of it inside one JSON string.

    start: Where in the code the piece begins.
    places: For each character of it, where in the file its escaped form begins, and one more: where the last one ends.
    between: What the file has between two strings of the cell's list; empty where the cell is one string.
    last: Whether nothing follows in the same string.
    """

    start: int
    places: Sequence[int]
    between: str
    last: bool

    @property
    def end(self) -> int:
        """Where in the code the piece ends."""
        return self.start + len(self.places) - 1


@dataclass(frozen=True, slots=True)
class _String:
    """One JSON string of a cell's source: decoded, with the place of each character in the file."""

    text: str
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell; `number` counts all cells of the notebook from 1."""

    number: int
    strings: tuple[_String, ...]
    between: str

    @property
    def code(self) -> str:
        """The cell's text. Half a surrogate pair, which is no text, is shown as a replacement character."""
        return re.sub("[\ud800-\udfff]", "\ufffd", "".join(string.text for string in self.strings))

    def pieces_of(self, start: int, end: int, at: int) -> Iterator[Piece]:
        """The pieces of `code[start:end]`, as part of a text in which it begins at `at`."""
        position = 0
        for string in self.strings:
            low, high = max(start, position), min(end, position + len(string.text))
            if low < high:
                places = string.places[low - position : high - position + 1]
                last = high == position + len(string.text)
                yield Piece(at + low - start, places, self.between, last)
            position += len(string.text)


class Strings:
    """From places in code to places in the file.

    text: The file.
    pieces: In the order of the code; code between two of them stands nowhere in the file.
    """

    def __init__(self, text: str, pieces: tuple[Piece, ...]) -> None:
        self._pieces = pieces
        self._starts = [piece.start for piece in pieces]
        self._plain_ascii = text.isascii()

    def span(self, span: Span) -> Span:
        """The stretch of the file that holds a stretch of the code."""
        first, last = self._piece(span.start), self._piece(max(span.start, span.end - 1))
        start = self._place(first, span.start)
        return Span(start, max(start, self._place(last, span.end)))

    def edits(self, edit: Edit) -> list[Edit]:
        """An edit of the code as edits of the file, one for each string that it touches."""
        touched = [
            piece
            for piece in self._pieces[self._index(edit.span.start) : self._index(edit.span.end) + 1]
            if piece.start < edit.span.end and edit.span.start < piece.end
        ] or [self._piece(edit.span.start)]
        lines = _shared(edit.text, len(touched))
        return [
            Edit(self._within(piece, edit.span), self._escaped(piece, edit.span, line))
            for piece, line in zip(touched, lines, strict=True)
        ]

    def _index(self, position: int) -> int:
        return max(0, bisect.bisect_right(self._starts, position) - 1)

    def _piece(self, position: int) -> Piece:
        return self._pieces[self._index(position)]

    @staticmethod
    def _place(piece: Piece, position: int) -> int:
        return piece.places[min(max(0, position - piece.start), len(piece.places) - 1)]

    def _within(self, piece: Piece, span: Span) -> Span:
        return Span(self._place(piece, span.start), self._place(piece, span.end))

    def _escaped(self, piece: Piece, span: Span, text: str) -> str:
        """New text inside a string; where the cell is a list of lines, each line a string of its own."""
        at_end = piece.last and span.end >= piece.end
        lines = _LINE.findall(text) if piece.between else [text]
        parts = [json.dumps(line, ensure_ascii=self._plain_ascii)[1:-1] for line in lines]
        if text.endswith("\n") and piece.between and not at_end:
            parts.append("")
        return f'"{piece.between}"'.join(parts)


def _shared(text: str, count: int) -> list[str]:
    """Text over so many strings: a line for each, the rest for the last."""
    lines = _LINE.findall(text)
    shared = [*lines[: count - 1], "".join(lines[count - 1 :])]
    return shared + [""] * (count - len(shared))


# --------------------------------------------------------------------------------------- reading


def code_cells(text: str) -> tuple[CodeCell, ...]:
    """The code cells of a Python notebook; none where the notebook is in another language.

    Raises NotebookError if the text is no JSON, or no notebook.
    """
    try:
        notebook = _Decoder().decode(text)
    except json.JSONDecodeError as error:
        raise NotebookError(f"is not JSON: {error.msg}", error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise NotebookError(f"is not a notebook: {error}") from error
    cells = enumerate(_cells(notebook), start=1)
    return tuple(
        _code_cell(text, number, cell.get(key, ""))
        for number, (key, cell) in cells
        if _is_code(number, cell)
    )


class _Placed(str):
    """A string value that knows where it stands in the file, its quotes included."""

    __slots__ = ("span",)
    span: Span


class _Decoder(json.JSONDecoder):
    """Python's own decoder, whose string values are `_Placed`."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_string = _placed
        # The scanner in C does not ask for `parse_string`.
        self.scan_once = py_make_scanner(self)


def _placed(text: str, start: int, strict: bool = True) -> tuple[_Placed, int]:
    value, end = scanstring(text, start, strict)
    found = _Placed(value)
    found.span = Span(start - 1, end)
    return found, end


def _cells(notebook: Any) -> Iterator[tuple[str, Any]]:
    """All cells of a notebook of format 3 or 4, each with the key that its text has."""
    if not isinstance(notebook, dict):
        raise NotebookError("is not a notebook: its JSON is not an object")
    if not _is_python(notebook.get("metadata")):
        return
    cells, sheets = notebook.get("cells"), notebook.get("worksheets")
    if isinstance(cells, list):
        yield from (("source", cell) for cell in cells)
    elif isinstance(sheets, list):
        known = [sheet for sheet in sheets if isinstance(sheet, dict)]
        yield from (("input", cell) for sheet in known for cell in sheet.get("cells", []))
    else:
        raise NotebookError("is not a notebook: it has no cells")


def _is_python(metadata: Any) -> bool:
    metadata = metadata if isinstance(metadata, dict) else {}
    for section, key in (("kernelspec", "language"), ("language_info", "name")):
        known = metadata.get(section)
        if isinstance(known, dict) and isinstance(known.get(key), str):
            return str(known[key]).lower().startswith(("python", "ipython"))
    return True


def _is_code(number: int, cell: Any) -> bool:
    if not isinstance(cell, dict):
        raise NotebookError(f"is not a notebook: cell {number} is not an object")
    return cell.get("cell_type") == "code"


def _code_cell(text: str, number: int, source: Any) -> CodeCell:
    lines = [source] if isinstance(source, str) else source
    if not (isinstance(lines, list) and all(isinstance(line, str) for line in lines)):
        raise NotebookError(f"is not a notebook: the code of cell {number} is not a text")
    spans = [line.span for line in lines if isinstance(line, _Placed)]
    return CodeCell(number, tuple(_decoded(text, span) for span in spans), _between(text, spans))


def _between(text: str, spans: Sequence[Span]) -> str:
    """What separates the strings of a list; for a list of one, what stands before it."""
    if not spans:
        return ""
    if len(spans) > 1:
        return text[spans[0].end : spans[1].start]
    before = text[: spans[0].start].rstrip()
    return "," + text[len(before) : spans[0].start] if before.endswith("[") else ""


def _decoded(text: str, span: Span) -> _String:
    """A JSON string, decoded; `span` includes its quotes."""
    parts: list[str] = []
    places: list[int] = []
    position, end = span.start + 1, span.end - 1
    for escape in _ESCAPE.finditer(text, position, end):
        parts += [text[position : escape.start()], json.loads(f'"{escape[0]}"')]
        places += [*range(position, escape.start()), escape.start()]
        position = escape.end()
    parts.append(text[position:end])
    return _String("".join(parts), [*places, *range(position, end + 1)])
