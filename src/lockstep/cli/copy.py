"""`lockstep copy`: a recording, or any folder, to object storage and back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from lockstep.cli import options
from lockstep.cli.options import PATH
from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import ExitCode, OutputExistsError, UsageError
from lockstep.core.progress import Progress
from lockstep.store.directory import is_recording
from lockstep.store.reader import open_recording
from lockstep.store.storage import COPYING, Storage, fetch_all, remove_recording, store_all
from lockstep.store.urls import url_of


@click.command()
@click.argument("origin", metavar="SOURCE", type=PATH)
@click.argument("target", type=PATH)
@options.force
def copy(origin: Path, target: Path, force: bool) -> int:
    """Copy a recording, or any folder, to object storage or back: s3://, gs://, az://, obs://, sftp://.

    Lockstep repeats lost requests. If a copy is interrupted, run it again, and it goes on.
    Manifests come last, so a recording of which only a part has arrived is never taken for a whole
    one. Other verbs take such a URL wherever they take a recording.

    \b
    lockstep copy ref s3://bucket/ref
    lockstep copy s3://bucket/ref ref
    """
    urls = url_of(origin), url_of(target)
    if not any(urls):
        raise UsageError(
            "give a URL on one side at least, as in s3://bucket/ref; on one machine, cp does it"
        )
    with progress_bar("copying") as told:
        if all(urls):
            with tempfile.TemporaryDirectory(prefix="lockstep-copy-") as between:
                fetch_all(Storage(urls[0]), Path(between), told)
                _store(Path(between), Storage(urls[1]), told, force=force)
        elif urls[1]:
            if not origin.is_dir():
                raise UsageError(
                    f"{origin}: there is no such folder; give the directory of a recording"
                )
            _store(origin, Storage(urls[1]), told, force=force)
        else:
            _fetch(Storage(urls[0]), target, told, force=force)
    click.echo(f"copied {urls[0] or origin} to {urls[1] or target}")
    return ExitCode.AGREES


def _store(source: Path, storage: Storage, told: Progress, *, force: bool) -> None:
    there = storage.names()
    if there and COPYING not in there:
        if not force:
            raise OutputExistsError(f"{storage.url}: exists already; give another URL, or --force")
        remove_recording(storage, there)
    store_all(source, storage, told)


def _fetch(storage: Storage, target: Path, told: Progress, *, force: bool) -> None:
    """Bring a folder here; the digests of a recording are checked at once."""
    if target.is_dir() and any(target.iterdir()) and not (target / COPYING).exists():
        if not force:
            raise OutputExistsError(f"{target}: exists already; give another folder, or --force")
        if not is_recording(target):
            raise OutputExistsError(f"{target}: is not a recording, so --force does not replace it")
        shutil.rmtree(target)
    fetch_all(storage, target, told)
    if is_recording(target):
        for rank in open_recording(target).ranks.values():
            rank.check_files()
