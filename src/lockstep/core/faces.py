"""Faces: modules that name what other packages may use of Lockstep, and load each name when it is first used.

A face lists its names once, as imports for type checkers:

    if TYPE_CHECKING:
        from lockstep.core.errors import UsageError
    else:
        __getattr__ = names_of_face(__name__)

so that one that names much costs a process only what it takes.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def names_of_face(face: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a face that is being loaded: it imports a name from where the face says it is.

    Parameters
    ----------
    face
        The face's own `__name__`.
    """
    module = sys.modules[face]
    assert module.__file__ is not None
    sources = sources_of(Path(module.__file__))

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(sources[name][0]), sources[name][1])
        setattr(module, name, found)  # asked once
        return found

    return load


def sources_of(file: Path) -> dict[str, tuple[str, str]]:
    """Return the module and the name there of each name of a face, by its file."""
    return {
        alias.asname or alias.name: (one.module or "", alias.name)
        for one in _imports_for_type_checkers(ast.parse(file.read_text("utf-8")))
        for alias in one.names
    }


def _imports_for_type_checkers(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    for one in tree.body:
        if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING":
            yield from (each for each in one.body if isinstance(each, ast.ImportFrom))


__all__ = ["names_of_face", "sources_of"]
