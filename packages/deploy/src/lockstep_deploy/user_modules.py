"""The user's modules that arguments name, by file or by dotted name, each loaded from where it stands.

Two arguments may name files of one name, as `old/net.py` and `new/net.py` do, and Python keeps modules by name alone:
the second would be the first one once more, and so would what it imports from its own folder.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_folders: set[Path] = set()
"""Where modules were loaded from so far."""


def module_at(place: str) -> ModuleType:
    """Return the module that is at a place: `file.py`, or a dotted name from the working directory or Python's path.

    What it imports from beside it is its own, too. A module that was loaded from there already is not run again.

    Raises ImportError if there is none. What the module's own code raises is passed on.
    """
    path = Path(place).resolve() if place.endswith(".py") else None
    folder = Path.cwd().resolve() if path is None else path.parent
    _forget_namesakes(folder)
    _folders.add(folder)
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(one for one in sys.path if one != str(folder))]
    importlib.invalidate_caches()
    return importlib.import_module(place) if path is None else _of_file(path)


def _of_file(path: Path) -> ModuleType:
    """A file's module, under a name of its own where a different module has the file's."""
    if not path.is_file():
        raise ModuleNotFoundError(f"there is no file {path}")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    for name in (path.stem, f"{path.stem}_{digest}"):
        module = sys.modules.get(name)
        if module is None:
            return _executed(name, path)
        if _is_at(module, path):
            return module
    raise ImportError(f"{path}: modules of other files have its names")


def _executed(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _forget_namesakes(folder: Path) -> None:
    """Let modules of other folders go whose names mean something else in this one."""
    for other in _folders - {folder}:
        shadowing = [
            name
            for name, module in list(sys.modules.items())
            if "." not in name and _stands_in(module, name, other) and _has(folder, name)
        ]
        for name in list(sys.modules):
            if name.partition(".")[0] in shadowing:
                del sys.modules[name]


def _stands_in(module: ModuleType, name: str, folder: Path) -> bool:
    """Whether a module is a file or a package right in a folder; a package without a file has paths alone."""
    file = getattr(module, "__file__", None)
    if file is not None:
        return Path(file).resolve() in (folder / f"{name}.py", folder / name / "__init__.py")
    return str(folder / name) in map(str, getattr(module, "__path__", ()))


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _is_at(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path
