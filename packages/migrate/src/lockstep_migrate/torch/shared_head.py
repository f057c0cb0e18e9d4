"""One module for what many files need of Lockstep, such as `accelerator.py`, and how each file imports it.

A file can import it where it imports its neighbours already: then it is run in a way in which such an import works.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from lockstep_migrate.torch.helper import HELPER, MODULE_DOC, helper_module

_IMPORTS = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b|import[ \t]+([\w.]+))", re.M)
_BROUGHT = re.compile(
    r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\r\n]*)|import[ \t]+[^\r\n]*)",
    re.M,
)
_BY_SOURCE = re.compile(
    r"\bgetsource\b[\s\S]*\b(?:exec\(|ModuleType)|\b(?:exec\(|ModuleType)[\s\S]*\bgetsource\b"
)
"""A module that runs the source of others again, as NVIDIA's `persistence.py` does when it loads a pickle."""
_WHOLE = re.compile(r"\bPackageExporter\b|\bregister_pickle_by_value\b")
"""A project that takes the source of its modules along with what it saves."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a file finds the shared head: the module's file, and what an import statement calls it."""

    file: PurePosixPath
    source: str


def shared_heads(
    texts: Mapping[PurePosixPath, str],
    name: str = HELPER,
    mark: str = MODULE_DOC,
    *,
    alone: bool = False,
    installed: Collection[PurePosixPath] = (),
) -> dict[PurePosixPath, Head]:
    """The shared module of each Python file that can import one; none where the name is taken.

    `alone`: whether a script that nothing imports can, too: its own folder is where its imports are looked for
    first.
    """
    layout = _Layout(texts, name, alone=alone, installed=installed)
    heads = {path: head for path in texts if (head := layout.head(path)) is not None}
    return {path: head for path, head in heads.items() if _is_free(head.file, texts, mark)}


def imported_words(texts: Iterable[str]) -> frozenset[str]:
    """Return the words of all import statements, among which are the last names of the modules that they bring."""
    return frozenset().union(*map(_words, texts))


def new_heads(files: Iterable[Head]) -> dict[PurePosixPath, bytes]:
    """The modules that have to be written, for the heads of all files that need one: those that two or more share."""
    uses: defaultdict[PurePosixPath, int] = defaultdict(int)
    for head in files:
        uses[head.file] += 1
    return {path: helper_module() for path, number in sorted(uses.items()) if number > 1}


class _Layout:
    """How the files of a project import each other."""

    def __init__(
        self,
        texts: Mapping[PurePosixPath, str],
        name: str,
        *,
        alone: bool,
        installed: Collection[PurePosixPath],
    ) -> None:
        self._texts = texts
        self._name = name
        self._alone = alone
        self._installed = installed
        self._imports = {path: _imported(text) for path, text in texts.items()}
        self._words = {
            word for names in self._imports.values() for one in names for word in one.split(".")
        }
        self._plainly: defaultdict[PurePosixPath, set[str]] = defaultdict(set)
        """The first names that the files of a folder import."""
        for path, names in self._imports.items():
            self._plainly[path.parent].update(one.split(".")[0] for one in names)
        self._packages = {path.parent for path in texts if path.stem == "__init__"}
        self._packages |= self._namespaces()
        self._by_source = {path.stem for path, text in texts.items() if _BY_SOURCE.search(text)}
        self._takes_sources = any(map(_WHOLE.search, texts.values()))

    def head(self, path: PurePosixPath) -> Head | None:
        """The module for one file; `None` where the file is run alone, or from its source."""
        runs_again = self._by_source and not self._by_source.isdisjoint(_words(self._texts[path]))
        if runs_again or self._takes_sources:
            return None
        return self._in_package(path) if path.parent in self._packages else self._of_script(path)

    def _of_script(self, path: PurePosixPath) -> Head | None:
        folder, names = path.parent, self._imports[path]
        siblings = {other.stem for other in self._texts if other.parent == folder}
        beside = {one.name for one in self._packages if one.parent == folder}
        if self._is_installed(folder) and (mine := beside & self._plainly[folder]):
            package = min(mine)
            return Head(folder / package / f"{self._name}.py", f"{package}.{self._name}")
        known = path.stem in self._plainly[folder] or any(
            one in siblings or one.split(".")[0] in beside for one in names
        )
        known |= self._alone and self._words.isdisjoint((path.stem, folder.name))
        return Head(folder / f"{self._name}.py", self._name) if known else None

    def _in_package(self, path: PurePosixPath) -> Head | None:
        names, top = self._imports[path], self._top(path.parent)
        root = top.parent
        is_run = "__main__" in self._texts[path]
        known = top.name in self._plainly[root]  # a script beside the package imports it
        beside = {one.name for one in self._packages if one.parent == root}
        from_root = bool(beside & {one.split(".")[0] for one in names})
        if top.name and known and not self._is_installed(root) and (from_root or not is_run):
            return Head(root / f"{self._name}.py", self._name)
        depth = len(path.parent.parts) - len(top.parts) + 1
        if not is_run and (known or any(one.startswith(".") for one in names)):
            return Head(top / f"{self._name}.py", "." * depth + self._name)
        if top.name and any(one.split(".")[0] == top.name for one in names):
            return Head(top / f"{self._name}.py", f"{top.name}.{self._name}")
        return None

    def _is_installed(self, root: PurePosixPath) -> bool:
        return root in self._installed or (root.name == "src" and root.parent in self._installed)

    def _namespaces(self) -> set[PurePosixPath]:
        """The folders without an `__init__` that a script beside them imports from."""
        folders = {path.parent for path in self._texts}
        found = set()
        for path, names in self._imports.items():
            for one in names:
                inner = path.parent
                for part in one.split(".") if not one.startswith(".") else ():
                    inner = inner / part
                    if inner in folders and inner.with_suffix(".py") not in self._texts:
                        found.add(inner)
        return found

    def _top(self, folder: PurePosixPath) -> PurePosixPath:
        while folder.name and folder.parent in self._packages:
            folder = folder.parent
        return folder


def _imported(text: str) -> set[str]:
    return {match[1] or match[2] for match in _IMPORTS.finditer(text)}


def _words(text: str) -> set[str]:
    return {word for found in _BROUGHT.finditer(text) for word in re.findall(r"\w+", found[0])}


def _is_free(file: PurePosixPath, texts: Mapping[PurePosixPath, str], mark: str) -> bool:
    """Whether nothing else has the name, or what has it was written by an earlier run."""
    package = file.with_suffix("")
    ours = mark in texts.get(file, mark)
    return ours and not any(package in path.parents for path in texts)
