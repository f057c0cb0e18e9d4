"""Writing what was migrated into a folder of its own, with everything that the sources need beside them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.replacement import replacing
from lockstep.wings.migrate.delivery.writing import inside, make_executable, naming, replace
from lockstep.wings.migrate.files.collection import Collection, Found, Link
from lockstep.wings.migrate.plan import NewFile, Plan

_NOTHING_WRITTEN = "nothing was left behind; give another output folder, or make room"
_PARTLY_WRITTEN = "files before it are written, each of them whole; correct this and run again"


def write_tree(plan: Plan, collection: Collection, out: Path, *, force: bool = False) -> Path:
    """Copy everything that was collected to `out`, with what the plan changes changed.

    A folder that is not there yet appears only when it is complete. Modes are kept; links stay links, and those that
    lead out of the input lead to the same place from the output. What belongs into `out` beside them can still be
    written; `copy_root_mode` ends that.

    Parameters
    ----------
    plan
        What changes. Its paths are those of the collection.
    collection
        What to copy.
    out
        A folder. For a single file that has the same suffix as `out`, the file itself.
    force
        Write into a folder that holds something already. Files are replaced one by one; others there stay.

    Returns
    -------
    Path
        The folder or file that was written.

    Raises
    ------
    OutputExistsError
        If `out` is there already, or a file in it cannot be written.
    UsageError
        If `out` would overwrite the input.
    """
    changed = {file.path: file.migrated() for file in plan.files if file.changed}
    if collection.single and is_file_name(collection, out):
        return _write_single(collection, changed, plan, out, force)
    _refuse(collection, out, force)
    collection = _without_unreadable(collection, plan)
    fresh = not (out.is_dir() and any(out.iterdir()))
    folder = _fresh_folder(out) if fresh else out
    try:
        advice = _NOTHING_WRITTEN if fresh else _PARTLY_WRITTEN
        _fill(folder, out, collection, changed, plan.new_files, advice)
        if fresh:
            with naming(out, advice):
                folder.replace(out)
    except BaseException:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return out


def _without_unreadable(collection: Collection, plan: Plan) -> Collection:
    """The collection without files that are known not to be readable: they cannot be copied either."""
    failed = {failure.path for failure in plan.failures}
    files = tuple(
        found
        for found in collection.files
        if found.path not in failed or os.access(found.location, os.R_OK)
    )
    return dataclasses.replace(collection, files=files)


def is_file_name(collection: Collection, out: Path) -> bool:
    """Whether `out` names the file that a single file becomes, not a folder to put it into."""
    given = collection.files[0].path
    return bool(given.suffix) and out.suffix == given.suffix and not out.is_dir()


def _write_single(
    collection: Collection,
    changed: dict[PurePosixPath, bytes],
    plan: Plan,
    out: Path,
    force: bool,
) -> Path:
    given = collection.files[0]
    news = [out.parent / new.path for new in plan.new_files]
    for path in (out, *news):
        if path.exists() and path.samefile(given.location):
            raise UsageError(f"{out}: is the input itself; use --in-place, or another name")
        if os.path.lexists(path) and not force:
            raise OutputExistsError(f"{path}: exists already; use --force, or another name")
    with naming(out, _NOTHING_WRITTEN):
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(out, given, changed)
    for new in plan.new_files:
        _add(out.parent, out.parent, new, _PARTLY_WRITTEN)
    return out


def _refuse(collection: Collection, out: Path, force: bool) -> None:
    where, root = out.resolve(), collection.root.resolve()
    if collection.single:
        if where == root:
            raise UsageError(f"{out}: is the input's own folder; use --in-place, or another folder")
    elif root.is_relative_to(where):
        raise UsageError(f"{out}: holds the input; use --in-place, or another folder")
    if out.exists() and not out.is_dir():
        raise OutputExistsError(f"{out}: is a file; give a folder that is not there yet")
    if out.is_dir() and not force:
        with naming(out, "give another output folder"):
            if any(out.iterdir()):
                raise OutputExistsError(
                    f"{out}: exists already; use --force to write into it, or give another folder"
                )


def _fresh_folder(out: Path) -> Path:
    """A folder beside `out` to fill before it gets its name."""
    with naming(out, _NOTHING_WRITTEN):
        out.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".lockstep-", suffix=".part", dir=out.parent))


def _fill(
    folder: Path,
    out: Path,
    collection: Collection,
    changed: dict[PurePosixPath, bytes],
    new_files: tuple[NewFile, ...],
    advice: str,
) -> None:
    """Write everything below `folder`; messages name the place below `out`, where it was to be."""
    for path in collection.folders:
        with naming(out / path, advice):
            (folder / path).mkdir(parents=True, exist_ok=True)
    for found in collection.files:
        with naming(out / found.path, advice):
            place = folder / found.path
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, found, changed)
    for link in collection.links:
        with naming(out / link.path, advice):
            _copy_link(folder / link.path, link, collection.root)
    for new in new_files:
        _add(folder, out, new, advice)
    _copy_modes(folder, collection)


def _write(place: Path, found: Found, changed: dict[PurePosixPath, bytes]) -> None:
    if found.path in changed:
        replace(place, changed[found.path], like=found.location)
        return
    with replacing(place) as aside:
        shutil.copy2(found.location, aside)


def _add(folder: Path, out: Path, new: NewFile, advice: str) -> None:
    place = inside(folder, new.path)
    with naming(out / new.path, advice):
        place.parent.mkdir(parents=True, exist_ok=True)
        replace(place, new.data)
        if new.executable:
            make_executable(place)


def _copy_link(place: Path, link: Link, root: Path) -> None:
    if place.is_symlink():
        place.unlink()
    place.symlink_to(_link_text(link, root))


def _link_text(link: Link, root: Path) -> str:
    """Where the copy of a link leads: inside the output where it led inside the input, else to the same place."""
    text = os.readlink(link.location)  # noqa: PTH115 - Path would tidy the text
    target = Path(os.path.realpath(link.location))
    within = target.is_relative_to(root.resolve())
    if within and Path(text).is_absolute():
        return os.path.relpath(target, link.location.parent.resolve())
    if within or Path(text).is_absolute():
        return text
    known = os.path.exists(target)  # noqa: PTH110 - Path.exists raises where nothing may be read
    return str(target) if known else text


def _copy_modes(folder: Path, collection: Collection) -> None:
    """Folders get their modes last: one that nobody may write to would not take its files."""
    for path in reversed(collection.folders):
        if path.parts:
            with suppress(OSError):
                shutil.copymode(collection.root / path, folder / path)
    with suppress(OSError):
        folder.chmod(_root_mode(collection) | stat.S_IRWXU)


def copy_root_mode(out: Path, collection: Collection) -> None:
    """Give `out` the mode of the input. `write_tree` leaves its owner the right to put reports into it."""
    with suppress(OSError):
        out.chmod(_root_mode(collection))


def _root_mode(collection: Collection) -> int:
    return stat.S_IMODE(collection.root.stat().st_mode)
