"""A script's calls and assignments, with the full names of what they call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Called:
    """A call.

    Parameters
    ----------
    name
        Its full name as imports tell it; for a method of something, `.name`.
    around
        Full names of calls whose arguments it stands in, innermost first.
    """

    name: str
    node: ast.Call
    around: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """A full name that is set."""

    name: str
    node: ast.Assign


@dataclass(slots=True)
class Script:
    """What a script calls, sets and loops over, in the order of its lines."""

    calls: list[Called] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    loops: list[ast.expr] = field(default_factory=list)


def read_script(source: str) -> Script:
    """Read a script.

    Raises
    ------
    SyntaxError
        If it is no Python of this version.
    """
    tree = ast.parse(source)
    names = dict(_imported(tree))
    script = Script()
    _walk(tree, names, (), script)
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


def _walk(node: ast.AST, names: Mapping[str, str], around: tuple[str, ...], script: Script) -> None:
    if isinstance(node, ast.Call):
        name = full_name(node.func, names)
        script.calls.append(Called(name, node, around))
        _walk(node.func, names, around, script)
        for argument in [*node.args, *node.keywords]:
            _walk(argument, names, (name, *around), script)
        return
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                script.assigned.append(Assigned(full_name(target, names), node))
    if isinstance(node, (ast.For, ast.comprehension)):
        script.loops.append(node.iter)
    for child in ast.iter_child_nodes(node):
        _walk(child, names, around, script)


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
