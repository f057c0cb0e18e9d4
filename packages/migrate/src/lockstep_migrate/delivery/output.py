"""Writing what was migrated into a folder of its own, with everything that the sources need beside them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path, PurePosixPath

from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import replacing
from lockstep_migrate.delivery.writing import inside, naming, replace
from lockstep_migrate.files.collection import Collection, Found, Link
from lockstep_migrate.plan import Plan

_NOTHING_WRITTEN = "nothing was left behind; give another output folder, or make room"
_PARTLY_WRITTEN = "files before it are written, each of them whole; correct this and run again"


def write_tree(plan: Plan, collection: Collection, out: Path, *, force: bool = False) -> Path:
    """Copy everything that was collected to `out`, with what the plan changes changed.

    A folder that is not there yet appears only when it is complete. Modes are kept, except that the owner may write
    in every folder; links stay links, and those that lead out of the input lead to the same place from the output.

    `force`: write into a folder that holds something already. Files are replaced one by one; others there stay.
    Returned: the folder or file that was written.
    Raises OutputExistsError if `out` is there already, or a file in it cannot be written.
    Raises UsageError if `out` would overwrite the input.
    """
    if collection.single and is_file_name(collection, out):
        return _write_single(collection, plan, out, force)
    _refuse(collection, out, force)
    if out.is_dir() and any(out.iterdir()):
        _fill(out, out, collection, plan, _PARTLY_WRITTEN)
        return out
    with naming(out, _NOTHING_WRITTEN):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".lockstep-", suffix=".part", dir=out.parent))
    try:
        _fill(folder, out, collection, plan, _NOTHING_WRITTEN)
        with naming(out, _NOTHING_WRITTEN):
            folder.replace(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return out


def is_file_name(collection: Collection, out: Path) -> bool:
    """Whether `out` names the file that a single file becomes, not a folder to put it into."""
    given = collection.files[0].path
    return bool(given.suffix) and out.suffix == given.suffix and not out.is_dir()


def _write_single(collection: Collection, plan: Plan, out: Path, force: bool) -> Path:
    given = collection.files[0]
    for path in (out, *(out.parent / new.path for new in plan.new_files)):
        if path.exists() and path.samefile(given.location):
            raise UsageError(f"{out}: is the input itself; use --in-place, or another name")
        if os.path.lexists(path) and not force:
            raise OutputExistsError(f"{path}: exists already; use --force, or another name")
    with naming(out, _NOTHING_WRITTEN):
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(out, given, _changed(plan))
    _add_new_files(out.parent, out.parent, plan, _PARTLY_WRITTEN)
    return out


def _refuse(collection: Collection, out: Path, force: bool) -> None:
    where, root = out.resolve(), collection.root.resolve()
    if root == where or (root.is_relative_to(where) and not collection.single):
        raise UsageError(f"{out}: holds the input; use --in-place, or another folder")
    if out.exists() and not out.is_dir():
        raise OutputExistsError(f"{out}: is a file; give a folder that is not there yet")
    with naming(out, "give another output folder"):
        if out.is_dir() and not force and any(out.iterdir()):
            raise OutputExistsError(
                f"{out}: exists already; use --force to write into it, or give another folder"
            )


def _fill(folder: Path, out: Path, collection: Collection, plan: Plan, advice: str) -> None:
    """Write everything below `folder`; messages name the place below `out`, where it was to be."""
    changed = _changed(plan)
    failed = {failure.path for failure in plan.failures}
    for path in collection.folders:
        with naming(out / path, advice):
            (folder / path).mkdir(parents=True, exist_ok=True)
            # Its owner may write in each, or it would take neither files nor reports.
            (folder / path).chmod(stat.S_IMODE((collection.root / path).stat().st_mode) | 0o700)
    for found in collection.files:
        if found.path in failed and not os.access(found.location, os.R_OK):
            continue  # said as a failure: what cannot be read cannot be copied either
        with naming(out / found.path, advice):
            place = folder / found.path
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, found, changed)
    for link in collection.links:
        with naming(out / link.path, advice):
            place = folder / link.path
            if place.is_symlink():
                place.unlink()
            place.symlink_to(_link_text(link, collection.root))
    _add_new_files(folder, out, plan, advice)


def _changed(plan: Plan) -> dict[PurePosixPath, bytes]:
    return {file.path: file.migrated() for file in plan.files if file.changed}


def _write(place: Path, found: Found, changed: dict[PurePosixPath, bytes]) -> None:
    if found.path in changed:
        replace(place, changed[found.path], like=found.location)
        return
    with replacing(place) as aside:
        shutil.copy2(found.location, aside)


def _add_new_files(folder: Path, out: Path, plan: Plan, advice: str) -> None:
    for new in plan.new_files:
        place = inside(folder, new.path)
        with naming(out / new.path, advice):
            place.parent.mkdir(parents=True, exist_ok=True)
            replace(place, new.data, executable=new.executable)


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
