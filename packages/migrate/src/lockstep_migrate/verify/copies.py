"""Copies of a project that a command can run in as if it ran in the project itself."""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from lockstep_migrate.files.collection import SKIPPED_FOLDERS

COPIED_BYTES = 512 << 20
"""More than this is not copied: what is larger is linked."""

ENTRIES = 5_000
"""Files and folders that are copied one by one; folders beyond them are linked whole."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The files to copy, and the folder they go to.

    A copy repeats the whole path of what it stands for, so that `..` leads to the same things from there.

    top: Stands for the root of the file system.
    root: The project, links resolved.
    here: The folder that the command was typed in.
    sources: Files of the project, relative to it, whose folders are entered whatever they hold.
    without: Folders that are not to be seen, such as an output folder.
    spellings: Other paths by which the two folders are known, through links.
    """

    top: Path
    root: Path
    here: Path
    sources: frozenset[PurePosixPath]
    without: frozenset[Path] = frozenset()
    spellings: Mapping[str, Path] = field(default_factory=dict)

    def copy_of(self, path: Path) -> Path:
        """Where the copy of an absolute path lies, or would lie."""
        return self.top / path.relative_to(path.anchor)

    @property
    def workplace(self) -> Path:
        """Stands for the folder that the command was typed in."""
        return self.copy_of(self.here)

    @property
    def project(self) -> Path:
        """Stands for the project."""
        return self.copy_of(self.root)

    def relative(self, path: str) -> PurePosixPath | None:
        """The project's own name of a file in the copy; None for any other file."""
        with suppress(ValueError):
            return PurePosixPath(Path(path).relative_to(self.project).as_posix())
        return None

    def redirected(self, word: str) -> str:
        """The same word with absolute paths into what was copied leading into the copy."""
        places = {str(path): path for path in (self.root, self.here)} | dict(self.spellings)
        longest_first = sorted(places.keys() - {os.sep}, key=len, reverse=True)
        if not longest_first:
            return word
        names = "|".join(map(re.escape, longest_first))
        path = rf"(?<![\w./~-])({names})(/[^\s:;,'\"]*)?(?![\w.-])"
        return re.sub(path, lambda found: self._moved(found, places), word)

    def _moved(self, found: re.Match[str], places: Mapping[str, Path]) -> str:
        copy = self.copy_of(places[found[1]])
        copy = copy / found[2].lstrip("/") if found[2] else copy
        linked = not Path(os.path.realpath(copy)).is_relative_to(self.top)
        return found[0] if linked else str(copy)


@dataclass(slots=True)
class Linked:
    """The files that a copy shares with the original, with their state before the command ran."""

    states: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Note a path that is linked."""
        state = _state(path)
        if state is not None:
            self.states[path] = state

    def changed(self) -> list[Path]:
        """Those that are not what they were."""
        return [path for path, state in self.states.items() if _state(path) != state]


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def make_copy(
    ground: Ground,
    contents: Mapping[PurePosixPath, bytes],
    executable: Iterable[PurePosixPath] = (),
) -> Linked:
    """Copy the project and the folder around the command.

    Sources are copied, and other files as long as they are not too many or too large; those, environments, crowded
    folders and what lies beside the project are linked.

    `ground`: what is copied where.
    Returned: what was linked of the project and of the folder around the command.
    """
    copier = _Copier(ground)
    copier.tree(ground.root)
    if not ground.here.is_relative_to(ground.root):
        copier.tree(ground.here)
    for folder in (ground.root, ground.here):
        for above in folder.parents:
            copier.beside(above)
    for path, data in contents.items():
        _put(ground.project / path, data)
    for path in executable:
        place = ground.project / path
        place.chmod(place.stat().st_mode | 0o111)
    return copier.linked


def _put(place: Path, data: bytes) -> None:
    """Write a file anew: what was copied may be read-only, or a link to the original."""
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = place.stat().st_mode if place.exists() else None
    place.unlink(missing_ok=True)
    place.write_bytes(data)
    if mode is not None:
        place.chmod(mode)


class _Copier:
    def __init__(self, ground: Ground) -> None:
        self.linked = Linked()
        self._ground = ground
        self._bytes, self._entries = COPIED_BYTES, ENTRIES
        sources = {ground.root / path for path in ground.sources}
        self._sources = sources
        self._entered = {ground.root, ground.here, *ground.root.parents} | {
            parent for path in sources for parent in path.parents
        }

    def tree(self, top: Path) -> None:
        """Copy a folder, what is near its top first."""
        waiting = deque([top])
        while waiting:
            folder = waiting.popleft()
            entries = _entries(folder)
            if folder not in self._entered and len(entries) > self._entries:
                self._link(folder)
                continue
            self._entries = max(0, self._entries - len(entries))
            copy = self._ground.copy_of(folder)
            copy.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                path = Path(entry.path)
                if (
                    not entry.is_dir(follow_symlinks=False)
                    or self._is_unseen(path)
                    or self._is_foreign(path)
                ):
                    self._entry(entry)
                else:
                    waiting.append(path)

    def beside(self, folder: Path) -> None:
        """Link what lies in a folder that is not copied itself."""
        self._ground.copy_of(folder).mkdir(parents=True, exist_ok=True)
        for entry in _entries(folder):
            place = self._ground.copy_of(Path(entry.path))
            if not os.path.lexists(place) and not self._is_unseen(Path(entry.path)):
                place.symlink_to(entry.path)

    def _entry(self, entry: os.DirEntry[str]) -> None:
        path = Path(entry.path)
        place = self._ground.copy_of(path)
        if os.path.lexists(place) or self._is_unseen(path):
            return
        if entry.is_symlink():
            self._copy_link(path)
        elif self._is_foreign(path):
            place.symlink_to(path)
        elif not (entry.is_file() and self._is_affordable(entry) and _copied(path, place)):
            self._link(path)

    def _is_affordable(self, entry: os.DirEntry[str]) -> bool:
        if Path(entry.path) in self._sources:
            return True
        size = entry.stat().st_size
        if size > self._bytes:
            return False
        self._bytes -= size
        return True

    def _copy_link(self, path: Path) -> None:
        """A link that leads to something that is copied leads to its copy, any other to where it led."""
        target = Path(os.path.realpath(path))
        copied = any(target.is_relative_to(top) for top in (self._ground.root, self._ground.here))
        place = self._ground.copy_of(path)
        if copied:
            target = Path(os.path.relpath(self._ground.copy_of(target), place.parent))
        place.symlink_to(target)

    def _link(self, path: Path) -> None:
        place = self._ground.copy_of(path)
        if not os.path.lexists(place):
            place.symlink_to(path)
            self.linked.add(path)

    def _is_unseen(self, path: Path) -> bool:
        ground = self._ground
        return (
            path.name == "__pycache__" or path in ground.without or ground.top.is_relative_to(path)
        )

    def _is_foreign(self, folder: Path) -> bool:
        """Whether a folder holds no sources of the project's own: it is linked whole."""
        return folder not in self._entered and (
            folder.name in SKIPPED_FOLDERS
            or (folder / "pyvenv.cfg").is_file()
            or (folder / "conda-meta").is_dir()
        )


def _copied(path: Path, place: Path) -> bool:
    """Copy a file, if it can be read."""
    try:
        shutil.copy2(path, place)
    except OSError:
        place.unlink(missing_ok=True)
        return False
    return True


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, small files first; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=_size_and_name)
    except OSError:
        return []


def _size_and_name(entry: os.DirEntry[str]) -> tuple[int, str]:
    try:
        size = entry.stat(follow_symlinks=False).st_size
    except OSError:
        size = 0
    return size, entry.name
