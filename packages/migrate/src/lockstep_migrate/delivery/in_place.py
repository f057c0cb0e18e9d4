"""Changing files where they are, and taking it back byte for byte.

In a clean git tree git takes it back. Elsewhere `.lockstep-migrate/` in the root gets a folder for each run, with a
copy of every file as it was. It appears by a rename before the first file changes, and a file changes by a rename, so
that a run that was killed can be taken back too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from lockstep.errors import CorruptError, OutputExistsError, UsageError
from lockstep.files import aside_of
from lockstep_migrate.delivery.writing import inside, locked, naming, replace, stage
from lockstep_migrate.files.collection import OWN_FOLDER, from_here
from lockstep_migrate.plan import Plan

_LIST = "files.json"
_UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of undoing one run, and the number of runs left to undo."""

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


@dataclass(frozen=True, slots=True)
class _Kept:
    """A file that a run changed: digests of what it held before and after. `before` is empty for one it added."""

    path: str
    before: str
    after: str


def write_in_place(plan: Plan, root: Path, *, force: bool = False) -> tuple[PurePosixPath, ...]:
    """Change the files of a plan where they are. Links are written through; modes and owners stay.

    `force`: replace a file where the plan adds one; undoing brings it back.
    Returned: the files that were changed or added; nothing is written where there are none.
    Raises UsageError if a file is not what it was when the plan was made, or another run is at work in `root`.
    Raises OutputExistsError if a file cannot be written; then none is changed, or the message says how to go back.
    """
    if not _changes(plan, root, force):
        return ()
    with locked(root / OWN_FOLDER):
        # Looked at again: a run that had the lock until now may have changed files.
        changes = _changes(plan, root, force)
        kept = None if _git_has(changes, root) else _keep(changes, root)
        staged: list[Path] = []
        try:
            staged += map(_stage, changes)
        except BaseException:
            _drop(staged)
            if kept:
                shutil.rmtree(kept, ignore_errors=True)
            _remove_empty_parents(root, [one.path for one in changes if one.old is None])
            raise
        _move_all(changes, root)
    return tuple(change.path for change in changes)


def way_back(root: Path) -> str:
    """The command that takes back what was just written below `root`."""
    if _runs(root):
        return shlex.join(["lockstep", "migrate", "undo", from_here(root)])
    return shlex.join(["git", "-C", from_here(root), "restore", "."])


def undo(root: Path, *, force: bool = False) -> Undone:
    """Take back the latest run in place below `root`.

    Raises UsageError if there is nothing to undo, a file was edited since, or another run is at work; nothing is
    written then.
    Raises CorruptError if what was kept is damaged.
    Raises OutputExistsError if a file cannot be written; undoing again goes on from there.
    """
    if not _runs(root):
        raise UsageError(
            f"{root}: nothing to undo: nothing was kept here; give the path that was migrated in place, or use"
            " `git restore .` where that was a clean git tree"
        )
    with locked(root / OWN_FOLDER):
        run = _runs(root)[-1]
        files = _read_list(run / _LIST)
        edited = [file.path for file in files if not _is_known(root, file)]
        if edited and not force:
            raise UsageError(
                f"{', '.join(edited)}: edited since being migrated; save those edits elsewhere, or use --discard-edits"
            )
        restored = _restore(root, run, files)
        removed = _remove_added(root, files)
        # By a rename first: half a folder of a run would be taken for damage.
        shutil.rmtree(run.with_name(_UNFINISHED), ignore_errors=True)
        run.replace(run.with_name(_UNFINISHED))
        shutil.rmtree(run.with_name(_UNFINISHED), ignore_errors=True)
        return Undone(restored, removed, len(_runs(root)))


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


def _git_has(changes: Sequence[_Change], root: Path) -> bool:
    """Whether `git restore .` would bring back these files, byte for byte, and take nothing else away."""
    git = ["git", "-c", "core.fsmonitor=false", "-C", os.fspath(root)]
    try:
        status = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "."], capture_output=True
        )
        index = subprocess.run([*git, "ls-files", "-s", "-z", "."], capture_output=True)
    except OSError:
        return False
    if status.returncode or status.stdout:
        return False
    entries = (entry.partition(b"\t") for entry in index.stdout.split(b"\0") if entry)
    held = {os.fsdecode(path): words.split()[1].decode() for words, _, path in entries}
    return all(
        change.old is not None and _is_blob(change.old, held.get(str(change.path), ""))
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


def _move_all(changes: Sequence[_Change], root: Path) -> None:
    """Put new content in place, except where somebody has edited the file meanwhile."""
    edited = []
    for change in changes:
        aside = aside_of(change.location)
        if _bytes(change.location) == change.old:
            with naming(
                change.location, f"files before it are changed; go back with `{way_back(root)}`"
            ):
                aside.replace(change.location)
        else:
            _drop([aside])
            edited.append(str(change.location))
    if edited:
        raise OutputExistsError(
            f"{', '.join(edited)}: edited while being migrated, so left as edited; the other files are changed:"
            " run again for what is left"
        )


# ---------------------------------------------------------------------------------- keeping


def _runs(root: Path) -> list[Path]:
    """The folders of earlier runs, the latest last."""
    with suppress(OSError):
        return sorted(
            (path for path in (root / OWN_FOLDER).iterdir() if path.name.isdecimal()),
            key=lambda path: int(path.name),
        )
    return []


def _keep(changes: Sequence[_Change], root: Path) -> Path:
    """Copy what is there into the folder of this run."""
    runs, folder = _runs(root), root / OWN_FOLDER / _UNFINISHED
    run = folder.with_name(str(int(runs[-1].name) + 1 if runs else 1))
    files = [_Kept(str(one.path), _digest(one.old), _digest(one.new)) for one in changes]
    with naming(folder, "no file was changed"):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
            replace(folder / ".gitignore", b"*\n")
            for number, change in enumerate(changes):
                if change.old is not None:
                    replace(folder / str(number), change.old, change.location)
            replace(folder / _LIST, json.dumps([asdict(file) for file in files]).encode())
            folder.replace(run)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return run


def _read_list(path: Path) -> list[_Kept]:
    try:
        return [_Kept(**file) for file in json.loads(_bytes(path) or b"")]
    except (ValueError, TypeError, RecursionError) as error:
        advice = "the files kept beside it may help"
        raise CorruptError(path, f"is damaged ({error})", advice=advice) from error


# ---------------------------------------------------------------------------------- undoing


def _is_known(root: Path, file: _Kept) -> bool:
    """Whether a file holds what the run wrote, or what was there before."""
    return _digest(_bytes(_real(root, file.path))) in {file.before, file.after}


def _restore(root: Path, run: Path, files: Sequence[_Kept]) -> tuple[PurePosixPath, ...]:
    restored = []
    for number, file in enumerate(files):
        location, kept = _real(root, file.path), run / str(number)
        with naming(location, "undo again to go on"):
            aside_of(location).unlink(missing_ok=True)
            now = _digest(_bytes(location))
            if now == file.before or not file.before:
                continue
            data = _bytes(kept)
            if data is None or _digest(data) != file.before:
                advice = "restore the file from elsewhere"
                raise CorruptError(kept, "is missing or damaged", advice=advice)
            location.parent.mkdir(parents=True, exist_ok=True)
            replace(location, data, location if now else kept)
            restored.append(PurePosixPath(file.path))
    return tuple(restored)


def _remove_added(root: Path, files: Sequence[_Kept]) -> tuple[PurePosixPath, ...]:
    added = [PurePosixPath(file.path) for file in files if not file.before]
    removed = [path for path in added if os.path.lexists(inside(root, path))]
    for path in removed:
        with naming(root / path, "undo again to go on"):
            (root / path).unlink()
    _remove_empty_parents(root, added)
    return tuple(removed)


def _remove_empty_parents(root: Path, added: Sequence[PurePosixPath]) -> None:
    """Remove folders that were made for files that are gone, unless somebody has put something there."""
    for parent in (parent for path in added for parent in path.parents if parent.parts):
        with suppress(OSError):
            (root / parent).rmdir()


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _real(root: Path, path: PurePosixPath | str) -> Path:
    return Path(os.path.realpath(inside(root, PurePosixPath(path))))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
