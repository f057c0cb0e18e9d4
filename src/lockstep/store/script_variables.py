"""Environment variables that the scripts of a recorded training read by name, and that a recording does not keep."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from lockstep.core.variables import VARIABLES

_LARGEST_BYTES = 1 << 20
"""Generated code may be longer, and reads no environment."""

_KEPT = frozenset(name for names in VARIABLES.values() for name in names)
_OF_LAUNCHERS = frozenset({"MASTER_ADDR", "MASTER_PORT", "HOME", "USER", "PATH", "PWD", "TMPDIR"})
_READS = frozenset({"get", "pop", "setdefault"})


def variables_read(files: Iterable[str]) -> list[str]:
    """Return the variables that these files of Python read by name and do not set, in order of their names.

    Left out is what a recording keeps (`lockstep.core.variables`), and what shells and launchers set. A file that is
    not here, or is no Python, reads none.
    """
    read, written = set[str](), set[str]()
    for file in files:
        try:
            state = Path(file).stat()
        except (OSError, ValueError):
            continue
        for name, sets in _named_in_file(file, state.st_mtime_ns, state.st_size):
            (written if sets else read).add(name)
    return sorted(read - written - _KEPT - _OF_LAUNCHERS)


@lru_cache(maxsize=4096)
def _named_in_file(file: str, modified_ns: int, size_bytes: int) -> tuple[tuple[str, bool], ...]:
    """The same of a file, which is read again where it was written again: each report of a comparison asks."""
    tree = _parsed(file)
    return () if tree is None else tuple(_named_in(tree))


def _parsed(file: str) -> ast.Module | None:
    try:
        with tokenize.open(file) as stream:
            text = stream.read(_LARGEST_BYTES + 1)
        asks = "environ" in text or "getenv" in text
        return ast.parse(text) if asks and len(text) <= _LARGEST_BYTES else None
    except (OSError, SyntaxError, ValueError):
        return None


def _named_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Names of variables, and whether they are set there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            name, sets = node.slice, not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Call) and node.args and _asks(node.func):
            name, sets = node.args[0], False
        elif isinstance(node, ast.Compare) and any(map(_is_environment, node.comparators)):
            name, sets = node.left, False
        else:
            continue
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value, sets


def _asks(function: ast.expr) -> bool:
    """Whether it is `os.getenv`, or a method of `os.environ` that reads."""
    if isinstance(function, ast.Attribute) and function.attr in _READS:
        return _is_environment(function.value)
    return _is_called(function, "getenv")


def _is_environment(node: ast.expr) -> bool:
    return _is_called(node, "environ")


def _is_called(node: ast.expr, name: str) -> bool:
    """Whether an expression is this name, or an attribute that is called so."""
    own = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return own == name
