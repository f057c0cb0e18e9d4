"""Statements of a module: what they import, the blocks they stand in, and what stands around them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.plan import Edit, Span

_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n|\Z)")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def imported_names(statement: ast.AST) -> list[str]:
    """The dotted names that a statement imports from outside the project; none where it imports nothing."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        return [f"{statement.module}.{alias.name}" for alias in statement.names]
    return []


def without_names(
    scopes: ModuleScopes, statement: ast.Import | ast.ImportFrom, gone: Collection[ast.alias]
) -> dict[ast.alias, Edit]:
    """The edits that take names out of an import statement that keeps others, each with its comma."""
    names, edits = statement.names, {}
    for number, alias in enumerate(names):
        if alias not in gone:
            continue
        span = scopes.span(alias)
        if any(later not in gone for later in names[number + 1 :]):
            span = Span(span.start, scopes.span(names[number + 1]).start)
        else:
            # Nothing stays behind it: the comma before it goes too.
            span = Span(scopes.span(names[number - 1]).end, span.end)
        edits[alias] = Edit(span, "")
    return edits


def deletion(scopes: ModuleScopes, statement: ast.stmt, *, empties: bool) -> Edit:
    """The edit that removes a statement: its line where it stands alone on it, else `pass` in its place."""
    span, source = scopes.span(statement), scopes.source
    line_start = source.line_start(span.start)
    rest = _REST_OF_LINE.match(source.text, span.end)
    if rest and not source.text[line_start : span.start].strip() and not empties:
        return Edit(Span(line_start, rest.end()), "")
    return Edit(span, "pass")


def may_be_missing(scopes: ModuleScopes, statement: ast.AST) -> bool:
    """Whether a module goes on where an import of its own fails or is left out: one inside `try`, or behind an `if`."""
    for above in scopes.ancestors(statement):
        if isinstance(above, ast.Try) and statement in above.body:
            inner = [node for handler in above.handlers for node in ast.walk(handler)]
            leaves = any(
                isinstance(node, ast.Raise)
                or (isinstance(node, ast.Call) and "exit" in scopes.text(node.func))
                for node in inner
            )
            return bool(above.handlers) and not leaves
        if isinstance(above, ast.If):
            return not isinstance(above.test, ast.Constant)
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
    return False


def assigned_to(scopes: ModuleScopes, attribute: ast.expr) -> list[ast.expr]:
    """What a module assigns to an attribute such as `self.x`, wherever it does."""
    name = scopes.text(attribute)
    return [
        assignment.value
        for assignment in scopes.of(ast.Assign)
        if any(scopes.text(target) == name for target in assignment.targets)
    ]


def main_guard(scopes: ModuleScopes) -> ast.If | None:
    """The `if __name__ == "__main__":` of a module."""
    for statement in scopes.tree.body:
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Compare):
            sides = [statement.test.left, *statement.test.comparators]
            words = {getattr(side, "id", getattr(side, "value", None)) for side in sides}
            if {"__name__", "__main__"} <= words:
                return statement
    return None


def is_exported(scopes: ModuleScopes, name: str) -> bool:
    """Whether the module's `__all__` has a name."""
    return any(
        isinstance(node, ast.Constant) and node.value == name
        for exported in scopes.module.bindings.get("__all__", ())
        if exported.value is not None
        for node in ast.walk(exported.value)
    )


def documented_function(scopes: ModuleScopes, docstring: str) -> ast.FunctionDef | None:
    """The function at the top of a module that has exactly this docstring: one that an earlier run wrote."""
    for statement in scopes.tree.body:
        if (
            isinstance(statement, ast.FunctionDef)
            and ast.get_docstring(statement, clean=False) == docstring
        ):
            return statement
    return None


def decorator_names(scopes: ModuleScopes, definition: Definition) -> Iterator[str]:
    """The qualified names of what decorates a function or class."""
    for decorator in definition.decorator_list:
        yield scopes.name(decorator.func if isinstance(decorator, ast.Call) else decorator)


def start_of(scopes: ModuleScopes, statement: ast.stmt) -> int:
    """Where a statement starts, its decorators included."""
    decorators = getattr(statement, "decorator_list", ())
    if not decorators:
        return scopes.span(statement).start
    return scopes.source.text.rindex("@", 0, scopes.span(decorators[0]).start)


def separator(scopes: ModuleScopes, statement: ast.stmt) -> str:
    """What stands between two statements here: a line end and the indentation, or a semicolon."""
    start = scopes.span(statement).start
    indentation = scopes.source.text[scopes.source.line_start(start) : start]
    return "; " if indentation.strip() else scopes.source.line_end + indentation


def siblings(scopes: ModuleScopes, statement: ast.stmt) -> list[ast.stmt]:
    """The block that a statement is part of."""
    for block in blocks_of(scopes.parents[statement]):
        if statement in block:
            return block
    return [statement]


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every block of statements that a node holds itself."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block
