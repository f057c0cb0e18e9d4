"""Find the user's module that a node of an exported program belongs to."""

from __future__ import annotations

import re

from torch import fx


def module_of(node: fx.Node) -> tuple[str, str]:
    """Path and class of the module that a node stands in; both "" where none is noted."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return re.sub(r"@\d+$", "", path), name
