"""Jupyter notebooks: changes inside the JSON strings of code cells, every byte around them as it was.

All code cells together are one module, so that an import in the first cell holds in the fifth. Results, metadata and
Markdown cells are no code and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lockstep_migrate.files import magics
from lockstep_migrate.files.notebook_json import (
    CodeCell,
    NotebookError,
    Piece,
    Strings,
    code_cells,
)
from lockstep_migrate.plan import Edit, Mention, Outcome, Span

__all__ = ["Analyse", "NotebookError", "notebook_mentions"]

Analyse = Callable[[str], tuple[tuple[Mention, ...], tuple[Edit, ...]]]
"""Reads Python: its mentions, and additions that belong to none; raises SyntaxError."""

ReadShell = Callable[[str], Sequence[Mention]]
"""Reads shell text."""

_CUDA_CELLS = frozenset({"cu", "cuda", "cuda_group_run", "cuda_group_save", "nvcc"})
_NAMES = re.compile(r"cuda|nccl|nvidia|cudnn|\bapex\b", re.IGNORECASE)


def notebook_mentions(
    text: str, analyse: Analyse, read_shell: ReadShell
) -> tuple[tuple[Mention, ...], tuple[Edit, ...]]:
    """Mentions and additions of a whole notebook, their places in characters of the file.

    Raises NotebookError if the file is no notebook.
    """
    cells = code_cells(text)
    reader = _Reader(text, analyse, read_shell)
    module: list[_Part] = []
    for cell in cells:
        module += reader.cell(cell)
    reader.module(module)
    mentions = sorted(reader.mentions, key=lambda mention: mention.span)
    return tuple(mentions), tuple(sorted(reader.additions))


@dataclass(frozen=True, slots=True)
class _Part:
    """Python of one cell: `code` begins at `start` of the cell's own text."""

    code: str
    start: int
    cell: CodeCell


@dataclass(slots=True)
class _Reader:
    text: str
    analyse: Analyse
    read_shell: ReadShell
    mentions: list[Mention] = field(default_factory=list)
    additions: list[Edit] = field(default_factory=list)

    def cell(self, cell: CodeCell) -> Iterator[_Part]:
        """Deal with everything in a cell but the notebook's own Python, which is given back."""
        code = cell.code
        taken = magics.take_apart(code)
        for span in taken.shell:
            self._shell(cell, span)
        if taken.file or taken.language:
            self._foreign(cell, taken)
        elif taken.masked.strip():
            error = magics.syntax_error(taken.masked)
            if error is None:
                yield _Part(taken.masked, taken.start, cell)
            else:
                self._broken(cell, taken, error)

    def module(self, parts: Sequence[_Part]) -> None:
        """Analyse the cells of a notebook as one module."""
        pieces: list[Piece] = []
        code = ""
        for part in parts:
            pieces += part.cell.pieces_of(part.start, part.start + len(part.code), len(code))
            # The line end between two cells is in neither, so that no edit can reach it.
            code += part.code if part.code.endswith("\n") else part.code + "\n"
        if code:
            self._take(Strings(self.text, tuple(pieces)), *self.analyse(code))

    def _shell(self, cell: CodeCell, span: Span) -> None:
        code = cell.code[span.start : span.end]
        # The mark of the magic is no part of the command.
        code = re.sub(r"^(?:!!?|%)", lambda match: " " * len(match[0]), code)
        strings = Strings(self.text, tuple(cell.pieces_of(span.start, span.end, 0)))
        self._take(strings, self.read_shell(code), ())

    def _foreign(self, cell: CodeCell, taken: magics.Cell) -> None:
        body = cell.code[taken.start :]
        strings = Strings(self.text, tuple(cell.pieces_of(taken.start, len(cell.code), 0)))
        if taken.file.endswith((".py", ".pyw")) and magics.parses(body):
            self._take(strings, *self.analyse(body))
        elif taken.file.endswith((".sh", ".bash")) or "Dockerfile" in taken.file:
            self._take(strings, self.read_shell(body), ())
        elif taken.language in _CUDA_CELLS:
            reason = "the cell holds CUDA code: no other device runs it"
            whole = Strings(self.text, tuple(cell.pieces_of(0, len(cell.code), 0)))
            mention = Mention("notebook/language", Outcome.LISTED, Span(0, len(cell.code)), reason)
            self._take(whole, (mention,), ())
        else:
            rule = "notebook/file" if taken.file else "notebook/language"
            what = f"writes {taken.file}" if taken.file else f"is in {taken.language}"
            for match in _NAMES.finditer(body):
                reason = f"the cell {what}: change it by hand"
                mention = Mention(rule, Outcome.LISTED, Span(*match.span()), reason)
                self._take(strings, (mention,), ())

    def _broken(self, cell: CodeCell, taken: magics.Cell, error: SyntaxError) -> None:
        strings = Strings(self.text, tuple(cell.pieces_of(0, len(cell.code), 0)))
        line = (error.lineno or 1) + cell.code[: taken.start].count("\n")
        reason = (
            f"cell {cell.number} is no Python: {error.msg} in its line {line}; correct it first"
        )
        mention = Mention("notebook/syntax", Outcome.LISTED, _line(cell.code, line), reason)
        self._take(strings, (mention,), ())

    def _take(
        self, strings: Strings, mentions: Sequence[Mention], additions: Sequence[Edit]
    ) -> None:
        for mention in mentions:
            edits = tuple(new for edit in mention.edits for new in strings.edits(edit))
            span = strings.span(mention.span)
            self.mentions.append(replace(mention, span=span, edits=edits))
        for edit in additions:
            self.additions += strings.edits(edit)


def _line(code: str, number: int) -> Span:
    """A line of a cell, counted from 1; the last one where there are fewer."""
    ends = [match.end() for match in re.finditer(r"[^\n]*\n|[^\n]+", code)]
    place = min(number, len(ends)) - 1
    return Span(ends[place - 1] if place > 0 else 0, ends[place])
