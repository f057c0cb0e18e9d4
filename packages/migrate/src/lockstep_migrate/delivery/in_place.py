"""Changing files where they are, in a git tree that can take it back."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import aside_of
from lockstep_migrate.delivery.writing import inside, naming, stage
from lockstep_migrate.files.collection import from_here
from lockstep_migrate.plan import Plan


@dataclass(frozen=True, slots=True)
class _Change:
    """New content for a file. `old` is None for a file that is added."""

    path: PurePosixPath
    location: Path
    old: bytes | None
    new: bytes
    executable: bool = False


def write_in_place(plan: Plan, root: Path, *, force: bool = False) -> str:
    """Change the files of a plan where they are. Links are written through; modes and owners stay.

    `force`: write where git could not take it back, too, and replace a file where the plan adds one.
    Returned: the command that takes it back; empty where nothing was written or nothing can.
    Raises UsageError if git could not take it back, or a file is not what it was when the plan was made.
    Raises OutputExistsError if a file cannot be written; then none is changed, or the message names those that are.
    """
    changes = _changes(plan, root, force)
    restorable = _git_has(changes, root)
    if not restorable and not force:
        raise UsageError(
            f"{root}: is no clean git tree, so nothing could take the changes back;"
            " commit first, write to another folder with -o, or use --force"
        )
    staged: list[Path] = []
    try:
        staged += map(_stage, changes)
    except BaseException:
        _drop(staged)
        _remove_empty_parents(root, [one.path for one in changes if one.old is None])
        raise
    _move_all(changes)
    return _way_back(changes, root) if changes and restorable else ""


def _way_back(changes: Sequence[_Change], root: Path) -> str:
    added = [from_here(change.location) for change in changes if change.old is None]
    restore = shlex.join(["git", "-C", from_here(root), "restore", "."])
    return f"{restore} && {shlex.join(['rm', *added])}" if added else restore


def _changes(plan: Plan, root: Path, force: bool) -> list[_Change]:
    changes: dict[Path, _Change] = {}
    for file in plan.files:
        location = _real(root, file.path)
        # A file that was given under two names is written once.
        if file.changed and location not in changes:
            if _bytes(location) != file.source.data:
                raise UsageError(f"{location}: was changed while being migrated; run again")
            changes[location] = _Change(file.path, location, file.source.data, file.migrated())
    for new in plan.new_files:
        location = _real(root, new.path)
        old = _bytes(location)
        if old is not None and old != new.data and not force:
            raise OutputExistsError(f"{location}: exists already; use --force to replace it")
        if old != new.data:
            changes[location] = _Change(new.path, location, old, new.data, new.executable)
    return list(changes.values())


def _git_has(changes: Sequence[_Change], root: Path) -> bool:
    """Whether `git restore .` would bring back these files, byte for byte, and take nothing else away."""
    git = ["git", "-c", "core.fsmonitor=false", "-C", os.fspath(root)]
    try:
        status = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "."], capture_output=True
        )
        index = subprocess.run([*git, "ls-files", "-s", "-z", "."], capture_output=True)
    except OSError:
        return not changes
    if status.returncode or status.stdout:
        return not changes
    entries = (entry.partition(b"\t") for entry in index.stdout.split(b"\0") if entry)
    held = {os.fsdecode(path): words.split()[1].decode() for words, _, path in entries}
    return all(
        change.old is None or _is_blob(change.old, held.get(str(change.path), ""))
        for change in changes
    )


def _is_blob(data: bytes, name: str) -> bool:
    """Whether git calls content by this name: not so where it changes line ends or keeps the content elsewhere."""
    algorithm = hashlib.sha256 if len(name) == 64 else hashlib.sha1
    return algorithm(b"blob %d\0" % len(data) + data).hexdigest() == name


def _stage(change: _Change) -> Path:
    """Write new content beside the file. All space that is needed is taken before any file changes."""
    with naming(change.location, "no file was changed"):
        change.location.parent.mkdir(parents=True, exist_ok=True)
        like = change.location if change.old is not None else None
        return stage(change.location, change.new, like, executable=change.executable)


def _drop(staged: Sequence[Path]) -> None:
    for aside in staged:
        with suppress(OSError):
            aside.unlink()


def _move_all(changes: Sequence[_Change]) -> None:
    """Put new content in place, except where somebody has edited the file meanwhile."""
    edited = []
    for change in changes:
        aside = aside_of(change.location)
        if _bytes(change.location) == change.old:
            with naming(change.location, "files before it are changed; run again for what is left"):
                aside.replace(change.location)
        else:
            _drop([aside])
            edited.append(str(change.location))
    if edited:
        raise OutputExistsError(
            f"{', '.join(edited)}: edited while being migrated, so left as edited; the other files are changed:"
            " run again for what is left"
        )


def _remove_empty_parents(root: Path, added: Sequence[PurePosixPath]) -> None:
    """Remove folders that were made for files that are gone, unless somebody has put something there."""
    for parent in (parent for path in added for parent in path.parents if parent.parts):
        with suppress(OSError):
            (root / parent).rmdir()


def _real(root: Path, path: PurePosixPath) -> Path:
    return Path(os.path.realpath(inside(root, path)))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
