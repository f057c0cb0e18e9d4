"""One module for the neutral head of many files: `accelerator.py` beside the files that can import it.

A file can where it imports its neighbours already: then it is run in a way in which such an import works.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from lockstep_migrate.torch.header import DEVICE_DOC, SHARED, shared_module

_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b|import[ \t]+([\w.]+))", re.M)


@dataclass(frozen=True, slots=True)
class Head:
    """Where a file finds the shared head: the module's file, and what an import statement calls it."""

    file: PurePosixPath
    source: str


def shared_heads(
    texts: Mapping[PurePosixPath, str],
    name: str = SHARED,
    mark: str = DEVICE_DOC,
    *,
    alone: bool = False,
) -> dict[PurePosixPath, Head]:
    """The shared module of each Python file that can import one; none where the name is taken.

    Parameters
    ----------
    texts
        All Python files of the project, by path.
    name
        What the module is called.
    mark
        A text of it, by which it is known again.
    alone
        Whether a script that nothing imports can, too: its own folder is where its imports are looked for first.
    """
    imports = {path: _imported(text) for path, text in texts.items()}
    packages = {path.parent for path in texts if path.stem == "__init__"}
    words = {word for names in imports.values() for one in names for word in one.split(".")}
    plainly: defaultdict[PurePosixPath, set[str]] = defaultdict(set)
    for path, names in imports.items():
        plainly[path.parent].update(name.split(".")[0] for name in names)
    found = {}
    for path, names in imports.items():
        if path.parent in packages:
            top = _top(path.parent, packages)
            known = top.name in plainly[top.parent]  # a script beside the package imports it
            is_run = "__main__" in texts[path]
            head = _in_package(path, names, top, name, is_run=is_run, known=known)
        else:
            siblings = {other.stem for other in texts if other.parent == path.parent}
            known = path.stem in plainly[path.parent] or any(n in siblings for n in names)
            known |= alone and words.isdisjoint((path.stem, path.parent.name))
            head = Head(path.parent / f"{name}.py", name) if known else None
        if head is not None and _is_free(head.file, texts, mark):
            found[path] = head
    return found


def new_heads(files: Iterable[Head]) -> dict[PurePosixPath, bytes]:
    """The modules that have to be written, for the heads of all files that need one: those that two or more share."""
    uses: defaultdict[PurePosixPath, int] = defaultdict(int)
    for head in files:
        uses[head.file] += 1
    return {path: shared_module() for path, number in sorted(uses.items()) if number > 1}


def _imported(text: str) -> set[str]:
    return {match[1] or match[2] for match in _IMPORTS.finditer(text)}


def _top(folder: PurePosixPath, packages: set[PurePosixPath]) -> PurePosixPath:
    while folder.name and folder.parent in packages:
        folder = folder.parent
    return folder


def _in_package(
    path: PurePosixPath,
    names: set[str],
    top: PurePosixPath,
    module: str,
    *,
    is_run: bool,
    known: bool,
) -> Head | None:
    depth = len(path.parent.parts) - len(top.parts) + 1
    if not is_run and (known or any(name.startswith(".") for name in names)):
        return Head(top / f"{module}.py", "." * depth + module)
    if top.name and any(name.split(".")[0] == top.name for name in names):
        return Head(top / f"{module}.py", f"{top.name}.{module}")
    return None


def _is_free(file: PurePosixPath, texts: Mapping[PurePosixPath, str], mark: str) -> bool:
    """Whether nothing else has the name, or what has it was written by an earlier run."""
    package = file.with_suffix("")
    ours = mark in texts.get(file, mark)
    return ours and not any(package in path.parents for path in texts)
