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
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from lockstep.core.errors import CorruptError, OutputExistsError, UsageError
from lockstep.core.version import VERSION
from lockstep.migrate.files import aside_of, digest, inside, make_executable, naming, replace, stage
from lockstep.migrate.plan import Plan
from lockstep.migrate.walk import OWN_FOLDER

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
        If a file is not what it was when the plan was made.
    OutputExistsError
        If a file cannot be written; then none is changed, or the message says how to go back.
    """
    changes = _changes(plan, root, force)
    if not changes:
        return ()
    journal = _Journal(root)
    runs = journal.load()
    run = Run(plan.target, VERSION, tuple(map(_changed, changes)), _folders_to_make(changes, root))
    try:
        for change in changes:
            if change.old is not None:
                journal.keep(change.old)
        journal.save((*runs, run))
        _stage_all(changes)
    except BaseException:
        _drop_asides(changes)
        _remove_folders(root, run)
        # On a full disk this may fail as well; what is left over then does no harm.
        with suppress(OutputExistsError):
            journal.save(runs)
        raise
    _move_all(changes)
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
        If there is nothing to undo, or a file was edited since; nothing is written then.
    CorruptError
        If what was kept is damaged.
    OutputExistsError
        If a file cannot be written; undoing again goes on from there.
    """
    journal = _Journal(root)
    runs = journal.load()
    if not runs:
        raise UsageError(
            f"{root}: nothing to undo: no files were migrated in place here; give the path that was"
        )
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


def _stage_all(changes: Sequence[_Change]) -> None:
    """Write all new content beside the files. All space that is needed is taken here."""
    for change in changes:
        with naming(change.location, "no file was changed"):
            change.location.parent.mkdir(parents=True, exist_ok=True)
            like = change.location if change.old is not None else None
            aside = stage(change.location, change.new, like)
            if change.executable:
                make_executable(aside)


def _drop_asides(changes: Sequence[_Change]) -> None:
    for change in changes:
        with suppress(OSError):
            aside_of(change.location).unlink()


def _move_all(changes: Sequence[_Change]) -> None:
    for change in changes:
        with naming(change.location, "files before it are changed; go back with --undo"):
            aside_of(change.location).replace(change.location)


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


@dataclass(slots=True)
class _Journal:
    """The folder with the list of runs and the bytes of earlier days, each content once."""

    root: Path
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.root / OWN_FOLDER

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
                f"{path}: is damaged ({error}); the files kept beside it may help"
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
            raise CorruptError(f"{path}: is missing or damaged; restore the file from elsewhere")
        return data

    def save(self, runs: Sequence[Run]) -> None:
        """Write the list, and forget what no run in it needs."""
        if not runs:
            shutil.rmtree(self.folder, ignore_errors=True)
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

    @property
    def _originals(self) -> Path:
        return self.folder / "originals"

    def _original(self, name: str) -> Path:
        if len(name) != 64 or not name.isalnum():
            raise CorruptError(f"{self.folder}: {name!r:.80} is no digest; the manifest is damaged")
        return self._originals / name


def _run_from_json(run: Any) -> Run:
    files = tuple(
        Changed(**{key: str(file[key]) for key in ("path", "before", "after")})
        for file in run["files"]
    )
    folders = tuple(str(folder) for folder in run["folders"])
    return Run(str(run["target"]), str(run["version"]), files, folders)
