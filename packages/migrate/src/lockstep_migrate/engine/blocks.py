"""Statements and their lines: insert before, after or under a condition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from lockstep_migrate.engine.arguments import insertion
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import start_of
from lockstep_migrate.plan import Edit

_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r|\n|\Z)")
_LINE = re.compile(r"\r\n|\r|\n")


class Blocks:
    """The lines of one module, with its own indentation and line ends.

    scopes: The module.
    """

    def __init__(self, scopes: ModuleScopes) -> None:
        self._scopes = scopes
        self.line_end = scopes.source.line_end
        self.step = self._step()

    def indent(self, statement: ast.stmt) -> str | None:
        """The blanks before a statement; `None` where it does not start its line."""
        start, source = start_of(self._scopes, statement), self._scopes.source
        before = source.text[source.line_start(start) : start]
        return before if not before.strip(" \t") else None

    def before(self, statement: ast.stmt, lines: Sequence[str]) -> Edit | None:
        """Insert lines before a statement; `None` where it does not start its line."""
        indent = self.indent(statement)
        if indent is None:
            return None
        at = start_of(self._scopes, statement)
        return insertion(
            at, "".join(f"{self._line(line)}{self.line_end}{indent}" for line in lines)
        )

    def behind(self, statement: ast.stmt, lines: Sequence[str]) -> Edit | None:
        """Insert lines behind a statement; `None` where something else follows on its line."""
        indent = self.indent(statement)
        text = self._scopes.source.text
        rest = _REST_OF_LINE.match(text, self._scopes.span(statement).end)
        if indent is None or rest is None:
            return None
        # At the start of the next line: what other rules add to the statement's end stays before it.
        line_end = _LINE.match(text, rest.end())
        at = line_end.end() if line_end else rest.end()
        added = [f"{indent}{self._line(line)}" for line in lines]
        if line_end:
            return insertion(at, "".join(f"{line}{self.line_end}" for line in added))
        return insertion(at, "".join(f"{self.line_end}{line}" for line in added))

    def guarded(self, statement: ast.stmt, test: str) -> list[Edit]:
        """Put a statement under a condition."""
        indent, at = self.indent(statement) or "", start_of(self._scopes, statement)
        edits = [insertion(at, f"if {test}:{self.line_end}{indent}{self.step}")]
        return edits + [insertion(line, self.step) for line in self._continuations(statement)]

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself."""
        rest = _REST_OF_LINE.match(self._scopes.source.text, self._scopes.span(statement).end)
        return self.indent(statement) is not None and rest is not None

    def _line(self, line: str) -> str:
        """A line of ours with the module's own indentation instead of `\\t`."""
        return line.replace("\t", self.step)

    def _continuations(self, statement: ast.stmt) -> Iterator[int]:
        """Starts of a statement's further lines, where moving them changes no string."""
        span = self._scopes.span(statement)
        starts = [
            span.start + match.end()
            for match in _LINE.finditer(self._scopes.source.text[span.start : span.end])
        ]
        strings = [
            piece.span
            for node in ast.walk(statement)
            if isinstance(node, ast.JoinedStr)
            or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
            if not isinstance(self._scopes.parents[node], ast.JoinedStr)
            for piece in self._scopes.pieces(node)
        ]
        text = self._scopes.source.text
        for start in starts:
            inside = any(string.start < start < string.end for string in strings)
            if not inside and text[start : start + 1] not in ("\r", "\n", ""):
                yield start

    def _step(self) -> str:
        """One level of indentation, as the module's first block has it."""
        for node in self._scopes.nodes:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.With):
                outer, inner = self.indent(node), self.indent(node.body[0])
                if outer is not None and inner and inner.startswith(outer) and inner != outer:
                    return inner[len(outer) :]
        return "    "
