"""The imports at the head of a migrated module."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.scopes import Bound, ModuleScopes
from lockstep_migrate.engine.statements import imported_names, start_of
from lockstep_migrate.plan import Edit, Span

_WIDTH = 100
_PLACEHOLDER = re.compile(r"\{([\w.]+(?: as \w+)?)\}")
_END_OF_LINE = re.compile(r"[ \t]*(?:#[^\r\n]*)?(\r\n|\r|\n|\Z)")

PACKAGES = frozenset({"tensorflow", "tensorflow_core", "keras", "horovod"})
"""Packages whose names are looked at."""


class Head:
    """Collects the names that new text uses, and writes one import for all that are missing.

    scopes: The module. Names that it has already are used as they are called there.
    """

    def __init__(self, scopes: ModuleScopes) -> None:
        self._scopes = scopes
        self._modules: dict[str, str] = {}
        self._names: dict[str, dict[str, str]] = {}
        self._statements: list[str] = []

    def name(self, dotted: str) -> str:
        """How the module calls something of a package, which is imported if it is not yet."""
        module, _, name = dotted.rpartition(".")
        known = self._known(dotted)
        if known:
            return known
        if module in self._scopes.stars and not self._is_bound(name):
            return name
        return self._names.setdefault(module, {}).setdefault(name, self._scopes.free_name([name]))

    def module(self, dotted: str, alias: str) -> str:
        """How the module calls a module, which is imported under an alias if it is not yet."""
        known = self._known(dotted)
        return known or self._modules.setdefault(dotted, self._scopes.free_name([alias]))

    def fill(self, template: str) -> str:
        """An expression with `{package.module.name}` and `{module as alias}` in the words of this module."""
        return _PLACEHOLDER.sub(self._filled, template)

    def _filled(self, found: re.Match[str]) -> str:
        module, _, alias = found[1].partition(" as ")
        if "." in module:
            return self.name(module)
        return self.module(module, alias or module)

    def statement(self, text: str) -> None:
        """Run a statement behind the imports."""
        self._statements.append(text)

    def additions(self) -> tuple[Edit, ...]:
        """The edit that adds what is missing; nothing where nothing is."""
        lines = [
            f"import {module}" if alias == module else f"import {module} as {alias}"
            for module, alias in sorted(self._modules.items())
        ]
        for module, names in sorted(self._names.items()):
            lines += _import_lines(module, names)
        lines += self._statements
        if not lines:
            return ()
        line_end = self._scopes.source.line_end
        at, before = self._place()
        return (Edit(Span(at, at), before + line_end.join(lines) + line_end),)

    def _known(self, dotted: str) -> str:
        for name, bindings in self._scopes.module.bindings.items():
            if (
                len(bindings) == 1
                and bindings[0].kind is Bound.IMPORT
                and bindings[0].qualified == dotted
            ):
                return name
        return ""

    def _is_bound(self, name: str) -> bool:
        return bool(self._scopes.bindings(name, self._scopes.module))

    def _place(self) -> tuple[int, str]:
        """Where the lines go, and what must stand before them: behind the first import of TensorFlow."""
        text = self._scopes.source.text
        for statement in self._scopes.tree.body:
            if any(name.split(".")[0] in PACKAGES for name in imported_names(statement)):
                end = _END_OF_LINE.match(text, self._scopes.span(statement).end)
                if end and end.group(1):
                    return end.end(), ""
                if end:
                    return end.end(), self._scopes.source.line_end
                break
        for statement in self._scopes.tree.body:
            if not _must_be_first(statement):
                source = self._scopes.source
                return source.line_start(start_of(self._scopes, statement)), ""
        return len(text), ""


def _import_lines(module: str, names: dict[str, str]) -> list[str]:
    parts = [
        name if name == alias else f"{name} as {alias}" for name, alias in sorted(names.items())
    ]
    line = f"from {module} import {', '.join(parts)}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"from {module} import (", *(f"    {part}," for part in parts), ")"]


def _must_be_first(statement: ast.stmt) -> bool:
    """Whether nothing may come before a statement: the docstring and `from __future__`."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
