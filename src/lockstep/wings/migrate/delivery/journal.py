"""Changing files where they are, and undoing it byte for byte.

`.lockstep-migrate/` in the root keeps a list of runs and the bytes that each changed file had before. The list is
written before the first file changes, and a file changes by a rename, so that a run that was killed can be undone too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from dataclasses import replace as with_changes
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from lockstep.core.errors import CorruptError, OutputExistsError, UsageError
from lockstep.core.replacement import aside_of
from lockstep.core.version import VERSION
from lockstep.wings.migrate.delivery.writing import (
    digest,
    inside,
    locked,
    make_executable,
    naming,
    replace,
    stage,
)
from lockstep.wings.migrate.files.collection import OWN_FOLDER
from lockstep.wings.migrate.plan import Plan

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Changed:
    """A file that a run changed: digests of what it held before and after. `before` is empty for one it added."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run in place, and the folders that it made."""

    target: str
    version: str
    files: tuple[Changed, ...]
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undone:
    """What undoing one run did, and how many runs are left to undo."""

    restored: tuple[PurePosixPath, ...]
    removed: tuple[PurePosixPath, ...]
    runs_left: int


@dataclass(frozen=True, slots=True)
class _Change:
    """New content for a file. `old` is None for a file that is added."""

    path: PurePosixPath
    location: Path
    old: bytes | None
    new: bytes
    executable: bool = False


def write_in_place(plan: Plan, root: Path, *, force: bool = False) -> tuple[PurePosixPath, ...]:
    """Change the files of a plan where they are. Links are written through; modes and owners stay.

    Parameters
    ----------
    plan
        What changes.
    root
        The folder that the plan's paths start from. It gets the folder `.lockstep-migrate`.
    force
        Replace a file where the plan adds one; undoing brings it back.

    Returns
    -------
    tuple[PurePosixPath, ...]
        The files that were changed or added; nothing is written where there are none.

    Raises
    ------
    UsageError
        If a file is not what it was when the plan was made, or another run is at work in `root`.
    OutputExistsError
        If a file cannot be written; then none is changed, or the message says how to go back.
    """
    if not _changes(plan, root, force):
        return ()
    journal = _Journal(root)
    with locked(journal.lock):
        # Looked at again: a run that had the lock until now may have changed files.
        return _write(_changes(plan, root, force), plan, root, journal)


def _write(
    changes: Sequence[_Change], plan: Plan, root: Path, journal: _Journal
) -> tuple[PurePosixPath, ...]:
    runs = journal.load()
    run = Run(plan.target, VERSION, tuple(map(_changed, changes)), _folders_to_make(changes, root))
    staged: list[Path] = []
    try:
        for change in changes:
            if change.old is not None:
                journal.keep(change.old)
        journal.save((*runs, run))
        _stage_all(changes, staged)
    except BaseException:
        _drop(staged)
        _remove_folders(root, run)
        # On a full disk this may fail as well; what is left over then does no harm.
        with suppress(OutputExistsError):
            journal.save(runs)
        raise
    edited = _move_all(changes)
    if edited:
        _forget(edited, run, runs, journal)
    return tuple(change.path for change in changes)


def undo(root: Path, *, force: bool = False) -> Undone:
    """Take back the latest run in place below `root`.

    Parameters
    ----------
    root
        The folder that was migrated, or the folder of a file that was.
    force
        Also restore files that were edited since, and lose those edits.

    Raises
    ------
    UsageError
        If there is nothing to undo, a file was edited since, or another run is at work; nothing is written then.
    CorruptError
        If what was kept is damaged.
    OutputExistsError
        If a file cannot be written; undoing again goes on from there.
    """
    journal = _Journal(root)
    _runs_to_undo(journal)  # before the lock, which makes a folder
    with locked(journal.lock):
        return _undo(root, journal, force)


def _runs_to_undo(journal: _Journal) -> tuple[Run, ...]:
    runs = journal.load()
    if not runs:
        raise UsageError(
            f"{journal.root}: nothing to undo: no files were migrated in place here; give the path that was"
        )
    return runs


def _undo(root: Path, journal: _Journal, force: bool) -> Undone:
    runs = _runs_to_undo(journal)
    run = runs[-1]
    edited = [file.path for file in run.files if not _is_known(root, file)]
    if edited and not force:
        raise UsageError(
            f"{', '.join(edited)}: edited since being migrated; save those edits elsewhere, or use --force"
        )
    restored = _restore(root, run, journal)
    removed = _remove_added(root, run)
    journal.save(runs[:-1])
    return Undone(restored, removed, len(runs) - 1)


# ---------------------------------------------------------------------------------- writing


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


def _changed(change: _Change) -> Changed:
    before = "" if change.old is None else digest(change.old)
    return Changed(str(change.path), before, digest(change.new))


def _folders_to_make(changes: Sequence[_Change], root: Path) -> tuple[str, ...]:
    missing = {
        parent.relative_to(root)
        for change in changes
        for parent in (root / change.path).parents
        if parent.is_relative_to(root) and not parent.exists()
    }
    return tuple(sorted(path.as_posix() for path in missing))


def _stage_all(changes: Sequence[_Change], staged: list[Path]) -> None:
    """Write all new content beside the files, noting where. All space that is needed is taken here."""
    for change in changes:
        with naming(change.location, "no file was changed"):
            change.location.parent.mkdir(parents=True, exist_ok=True)
            like = change.location if change.old is not None else None
            aside = stage(change.location, change.new, like)
            staged.append(aside)
            if change.executable:
                make_executable(aside)


def _drop(staged: Sequence[Path]) -> None:
    for aside in staged:
        with suppress(OSError):
            aside.unlink()


def _move_all(changes: Sequence[_Change]) -> list[_Change]:
    """Put the new content in place; gives those that somebody has edited meanwhile, which stay as they are."""
    edited = []
    for change in changes:
        aside = aside_of(change.location)
        if _is_unedited(change):
            with naming(
                change.location, "files before it are changed; go back with `lockstep migrate undo`"
            ):
                aside.replace(change.location)
        else:
            _drop([aside])
            edited.append(change)
    return edited


def _is_unedited(change: _Change) -> bool:
    try:
        return _bytes(change.location) == change.old
    except UsageError:
        return False


def _forget(
    edited: Sequence[_Change], run: Run, runs: tuple[Run, ...], journal: _Journal
) -> NoReturn:
    """Take files that were left alone out of the run, so that undoing leaves them alone too."""
    left = {str(change.path) for change in edited}
    files = tuple(file for file in run.files if file.path not in left)
    kept = (*runs, with_changes(run, files=files)) if files else runs
    journal.save(kept)
    names = ", ".join(str(change.location) for change in edited)
    done = "; the other files are changed, `lockstep migrate undo` takes them back" if files else ""
    raise OutputExistsError(
        f"{names}: edited while being migrated, so left as edited{done}; run again for what is left"
    )


# ---------------------------------------------------------------------------------- undoing


def _is_known(root: Path, file: Changed) -> bool:
    """Whether a file holds what the run wrote, or what was there before."""
    data = _bytes(_real(root, PurePosixPath(file.path)))
    return ("" if data is None else digest(data)) in {file.before, file.after}


def _restore(root: Path, run: Run, journal: _Journal) -> tuple[PurePosixPath, ...]:
    restored = []
    for file in run.files:
        path = PurePosixPath(file.path)
        location = _real(root, path)
        with naming(location, "undo again to go on"):
            aside_of(location).unlink(missing_ok=True)
            data = _bytes(location)
            if file.before and (data is None or digest(data) != file.before):
                location.parent.mkdir(parents=True, exist_ok=True)
                replace(location, journal.kept(file.before), None if data is None else location)
                restored.append(path)
    return tuple(restored)


def _remove_added(root: Path, run: Run) -> tuple[PurePosixPath, ...]:
    removed = []
    for file in run.files:
        location = inside(root, PurePosixPath(file.path))
        if not file.before and os.path.lexists(location):
            with naming(location, "undo again to go on"):
                location.unlink()
            removed.append(PurePosixPath(file.path))
    _remove_folders(root, run)
    return tuple(removed)


def _remove_folders(root: Path, run: Run) -> None:
    """Remove the folders that the run made, unless somebody has put something there."""
    for folder in sorted(run.folders, reverse=True):
        with suppress(OSError):
            inside(root, PurePosixPath(folder)).rmdir()


def _real(root: Path, path: PurePosixPath) -> Path:
    return Path(os.path.realpath(inside(root, path)))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error


# ---------------------------------------------------------------------------------- keeping


class _Journal:
    """The folder with the list of runs and the bytes of earlier days, each content once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / OWN_FOLDER

    def load(self) -> tuple[Run, ...]:
        path = self.folder / "manifest.json"
        data = _bytes(path)
        if data is None:
            return ()
        try:
            content = json.loads(data)
            if content["schema"] != _SCHEMA:
                raise UsageError(
                    f"{path}: was written by another version of Lockstep; use that one"
                )
            return tuple(_run_from_json(run) for run in content["runs"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptError(
                path, f"is damaged ({error})", advice="the files kept beside it may help"
            ) from error

    def keep(self, data: bytes) -> None:
        path = self._original(digest(data))
        with naming(path, "no file was changed"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                replace(path, data)
            ignore = self.folder / ".gitignore"
            if not ignore.exists():
                replace(ignore, b"*\n")

    def kept(self, name: str) -> bytes:
        path = self._original(name)
        data = _bytes(path)
        if data is None or digest(data) != name:
            raise CorruptError(
                path, "is missing or damaged", advice="restore the file from elsewhere"
            )
        return data

    def save(self, runs: Sequence[Run]) -> None:
        """Write the list, and forget what no run in it needs."""
        if not runs:
            self._empty()
            return
        content = {"schema": _SCHEMA, "runs": [asdict(run) for run in runs]}
        path = self.folder / "manifest.json"
        with naming(path, "no file was changed"):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace(path, json.dumps(content, indent=1).encode())
        needed = {file.before for run in runs for file in run.files}
        with suppress(OSError):
            for original in self._originals.iterdir():
                if original.name not in needed:
                    original.unlink()

    def _empty(self) -> None:
        """Remove everything but the lock: who holds it removes it last, and the folder with it."""
        with suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path != self.lock:
                    path.unlink()

    @property
    def lock(self) -> Path:
        """What a run holds for as long as it changes files or this folder."""
        return self.folder / "lock"

    @property
    def _originals(self) -> Path:
        return self.folder / "originals"

    def _original(self, name: str) -> Path:
        if len(name) != 64 or not name.isalnum():
            raise CorruptError(
                self.folder, f"{name!r:.80} is no digest; the manifest is damaged", advice=""
            )
        return self._originals / name


def _run_from_json(run: Any) -> Run:
    files = tuple(
        Changed(**{key: str(file[key]) for key in ("path", "before", "after")})
        for file in run["files"]
    )
    folders = tuple(str(folder) for folder in run["folders"])
    return Run(str(run["target"]), str(run["version"]), files, folders)
