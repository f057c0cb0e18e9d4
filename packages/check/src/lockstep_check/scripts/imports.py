"""Which files of a project a script imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_files(source: str, file: Path, folder: Path) -> list[Path]:
    """Return the project's own files that a script imports; none where it is no Python.

    source, file: What the script holds, and where it lies.
    folder: The folder of the script that was started, which Python looks into first.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # said by whoever looks at the script itself
    found = [
        path
        for node in ast.walk(tree)
        for place in _places(node, file, folder)
        for path in (place.with_suffix(".py"), place / "__init__.py")
        if place.name and path.is_file()
    ]
    return list(dict.fromkeys(found))


def _places(node: ast.AST, file: Path, folder: Path) -> Iterator[Path]:
    """Paths, without an ending, that an import may mean: the module, and each name as a module in it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from (root.joinpath(*alias.name.split(".")) for root in (folder, file.parent))
    elif isinstance(node, ast.ImportFrom):
        parts = node.module.split(".") if node.module else []
        roots = [file.parents[node.level - 1]] if node.level else [folder, file.parent]
        for root in roots:
            base = root.joinpath(*parts)
            if parts:
                yield base
            yield from (base / alias.name for alias in node.names)
