"""Syntax trees: parsed without a word, and walked by what rules look at."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import TypeGuard

_WORDLESS = frozenset({"ctx", "op", "ops", "kind", "type_comment", "id", "attr", "n", "s"})
"""Fields of nodes that hold no expression or statement."""


def parse(text: str) -> ast.Module:
    """Parse a module without a word on the terminal.

    Raises SyntaxError if it is no Python of this interpreter's version, or too deeply nested for its parser.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (RecursionError, MemoryError) as error:
            raise SyntaxError("is nested too deeply for Python's parser") from error
        except ValueError as error:
            raise SyntaxError(str(error)) from error


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is made of, operators and contexts left out."""
    for name in node._fields:
        if name in _WORDLESS:
            continue
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (item for item in value if isinstance(item, ast.AST))
        elif isinstance(value, ast.AST):
            yield value


def is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether an expression is `self.something`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
