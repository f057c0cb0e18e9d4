"""One module for the neutral head of many files: `accelerator.py` beside the files that can import it.

A file can where it imports its neighbours already: then it is run in a way in which such an import works.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from lockstep.wings.migrate.torch.header import DEVICE_DOC, SHARED, shared_module

_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b|import[ \t]+([\w.]+))", re.M)


@dataclass(frozen=True, slots=True)
class Head:
    """Where a file finds the shared head: the module's file, and what an import statement calls it."""

    file: PurePosixPath
    source: str


def shared_heads(texts: Mapping[PurePosixPath, str]) -> dict[PurePosixPath, Head]:
    """The shared head of each Python file that can import one; none where the name is taken.

    Parameters
    ----------
    texts
        All Python files of the project, by path.
    """
    imports = {path: _imported(text) for path, text in texts.items()}
    packages = {path.parent for path in texts if path.stem == "__init__"}
    plainly: defaultdict[PurePosixPath, set[str]] = defaultdict(set)
    for path, names in imports.items():
        plainly[path.parent].update(name.split(".")[0] for name in names)
    found = {}
    for path, names in imports.items():
        if path.parent in packages:
            head = _in_package(path, names, packages, is_run="__main__" in texts[path])
        else:
            siblings = {other.stem for other in texts if other.parent == path.parent}
            known = path.stem in plainly[path.parent] or any(n in siblings for n in names)
            head = Head(path.parent / f"{SHARED}.py", SHARED) if known else None
        if head is not None and _is_free(head.file, texts):
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


def _in_package(
    path: PurePosixPath, names: set[str], packages: set[PurePosixPath], *, is_run: bool
) -> Head | None:
    top = path.parent
    while top.parent in packages:
        top = top.parent
    depth = len(path.parent.parts) - len(top.parts) + 1
    if not is_run and any(name.startswith(".") for name in names):
        return Head(top / f"{SHARED}.py", "." * depth + SHARED)
    if top.name and any(name.split(".")[0] == top.name for name in names):
        return Head(top / f"{SHARED}.py", f"{top.name}.{SHARED}")
    return None


def _is_free(file: PurePosixPath, texts: Mapping[PurePosixPath, str]) -> bool:
    """Whether nothing else has the name, or what has it was written by an earlier run."""
    package = file.with_suffix("")
    ours = DEVICE_DOC in texts.get(file, DEVICE_DOC)
    return ours and not any(package in path.parents for path in texts)
