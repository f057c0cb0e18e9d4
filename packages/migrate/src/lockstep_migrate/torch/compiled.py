"""Which functions and classes are compiled as a whole, so that nothing can be asked in them as they run.

TorchScript compiles what `torch.jit.script` is given, by decorator or by call, and all that this calls;
`torch.compile(..., fullgraph=True)` fails at the first question that it cannot trace.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from lockstep_migrate.engine.arguments import called, is_constant, keyword

_MARKS = re.compile(r"\bjit\b|\bfullgraph\b")
_SCRIPTING = re.compile(r"(?:(?:.*\.)?jit\.)?script(?:_method)?\Z|(?:.*\.)?jit\.export\Z")
_EXPORTED = re.compile(r"(?:.*\.)?export\Z")
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def may_compile(text: str) -> bool:
    """Whether a file may say that something is compiled as a whole."""
    return _MARKS.search(text) is not None


def compiled_names(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of the functions and classes that are compiled, and of those that they call."""
    roots: set[str] = set()
    calls: defaultdict[str, set[str]] = defaultdict(set)
    makes: defaultdict[str, set[str]] = defaultdict(set)
    classes: set[str] = set()
    for tree in trees:
        roots |= set(_roots(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
                for part in node.body:
                    given = makes if getattr(part, "name", "") == "__init__" else calls
                    given[node.name] |= _called_in(part)
            elif isinstance(node, _FUNCTIONS):
                calls[node.name] |= _called_in(node)
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += calls[name] | (makes[name] & classes)
    return frozenset(found)


def compiled_parts(tree: ast.Module, names: Iterable[str]) -> frozenset[ast.AST]:
    """Return the functions of a module that are compiled: those of these names, and what `forward` of a class calls."""
    known, found = frozenset(names), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS | ast.ClassDef) and any(map(_compiles, node.decorator_list)):
            found.add(node)
    for node in tree.body:
        if isinstance(node, _FUNCTIONS) and node.name in known:
            found.add(node)
        elif isinstance(node, ast.ClassDef) and node.name in known:
            found.update(_methods(node))
    return frozenset(found)


def _methods(node: ast.ClassDef) -> Iterator[ast.AST]:
    """The methods of a module that are compiled: `forward`, those that it calls, and exported ones."""
    methods = {part.name: part for part in node.body if isinstance(part, _FUNCTIONS)}
    waiting = [
        name
        for name, method in methods.items()
        if name == "forward"
        or any(_EXPORTED.match(ast.unparse(one)) for one in method.decorator_list)
    ]
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in methods and name not in done:
            done.add(name)
            yield methods[name]
            waiting += _called_in(methods[name])


def _roots(tree: ast.Module) -> Iterator[str]:
    """The names of what a module compiles, by decorator or by call."""
    held: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for name in node.targets:
                if isinstance(name, ast.Name):
                    held[name.id] += _made_by(node.value)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS | ast.ClassDef):
            if any(map(_compiles, node.decorator_list)):
                yield node.name
        elif isinstance(node, ast.Call) and _compiles(node):
            given = node.args[0] if node.args else node.func
            if isinstance(given, ast.Attribute) and called(node) == "compile":
                given = given.value  # model.compile(fullgraph=True)
            waiting, found = list(_made_by(given)), set[str]()
            while waiting:
                maker = waiting.pop()
                if maker not in found:
                    found.add(maker)
                    waiting += held[maker]
            yield from found


def _made_by(node: ast.expr) -> tuple[str, ...]:
    """What makes a value: `Net` in `Net().eval().cuda()`, `net` in `net.cuda()`, and the methods on the way."""
    names: list[str] = []
    while isinstance(node, ast.Call):
        names.append(called(node))
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return (*names, node.id) if isinstance(node, ast.Name) else tuple(names)


def _compiles(node: ast.expr) -> bool:
    """Whether a decorator or call compiles something as a whole."""
    if isinstance(node, ast.Call):
        whole = keyword(node, "fullgraph")
        if called(node) == "compile" and whole is not None:
            return is_constant(whole.value, True)
        return _compiles(node.func)
    return (
        isinstance(node, ast.Name | ast.Attribute)
        and _SCRIPTING.match(ast.unparse(node)) is not None
    )


def _called_in(node: ast.AST) -> set[str]:
    return {called(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call)} - {""}
