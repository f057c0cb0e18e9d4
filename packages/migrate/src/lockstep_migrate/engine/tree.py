"""Walking a syntax tree by what rules look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

_WORDLESS = frozenset({"ctx", "op", "ops", "kind", "type_comment", "id", "attr", "n", "s"})
"""Fields of nodes that hold no expression or statement."""


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
