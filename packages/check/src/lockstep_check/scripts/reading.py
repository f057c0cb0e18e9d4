"""A script's calls and assignments, with the full names of what they call and the conditions that they stand under."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a piece of a script stands.

    file: The script's name, as the project knows it.
    functions: Names of the functions around it, outermost first.
    conditions: Tests of the `if` around it, inside of its own function, and whether each has to hold.
    repeats: It stands in a loop of its own function.
    """

    file: str
    functions: tuple[str, ...] = ()
    conditions: tuple[tuple[ast.expr, bool], ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """A call.

    name: Its full name as imports tell it; for a method of something, `.name`.
    around: Full names of calls whose arguments it stands in, innermost first.
    target: The name that the statement sets, or empty.
    """

    name: str
    node: ast.Call
    around: tuple[str, ...]
    scope: Scope
    target: str = ""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A full name that is set."""

    name: str
    node: ast.Assign
    scope: Scope


@dataclass(slots=True)
class Script:
    """The calls, assignments and loops of a script, in the order of its lines."""

    tree: ast.Module
    names: Mapping[str, str]
    calls: list[Called] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    loops: list[ast.expr] = field(default_factory=list)


def read_script(source: str, file: str = "") -> Script:
    """Read a script. Raises SyntaxError if it is no Python of this version."""
    tree = ast.parse(source)
    script = Script(tree, dict(_imported(tree)))
    _walk(tree, (), Scope(file), "", script)
    return script


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What each name that an import makes stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _walk(
    node: ast.AST, around: tuple[str, ...], scope: Scope, target: str, script: Script
) -> None:
    if isinstance(node, ast.Call):
        name = full_name(node.func, script.names)
        script.calls.append(Called(name, node, around, scope, target))
        _walk(node.func, around, scope, target, script)
        for argument in [*node.args, *node.keywords]:
            _walk(argument, (name, *around), scope, target, script)
        return
    if isinstance(node, (ast.If, ast.IfExp)):
        _walk_branches(node, around, scope, target, script)
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for outside in [*node.decorator_list, node.args]:
            _walk(outside, around, scope, target, script)
        inside = Scope(scope.file, (*scope.functions, node.name))
        for statement in node.body:
            _walk(statement, around, inside, "", script)
        return
    if isinstance(node, ast.Assign):
        for one in node.targets:
            if isinstance(one, ast.Attribute):
                script.assigned.append(Assigned(full_name(one, script.names), node, scope))
        target = ast.unparse(node.targets[0])
    if isinstance(node, (ast.For, ast.comprehension)):
        script.loops.append(node.iter)
    if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.GeneratorExp, ast.ListComp)):
        scope = replace(scope, repeats=True)
    for child in ast.iter_child_nodes(node):
        _walk(child, around, scope, target, script)


def _walk_branches(
    node: ast.If | ast.IfExp, around: tuple[str, ...], scope: Scope, target: str, script: Script
) -> None:
    _walk(node.test, around, scope, target, script)
    for branch, holds in ((node.body, True), (node.orelse, False)):
        inside = replace(scope, conditions=(*scope.conditions, (node.test, holds)))
        for child in branch if isinstance(branch, list) else [branch]:
            _walk(child, around, inside, target, script)


def full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name of `nn.Dropout`, by what `nn` was imported as; `.name` where what it belongs to is no import."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        known = names.get(node.id)
        if known is not None or not parts:
            return ".".join([known or node.id, *reversed(parts)])
    return f".{parts[0]}" if parts else ""
