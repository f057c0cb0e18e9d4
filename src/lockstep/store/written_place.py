"""A folder that a verb writes, wherever it lies: one in object storage is filled here, and goes there at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.core.errors import LockstepError, OutputExistsError
from lockstep.store.directory import is_recording
from lockstep.store.urls import url_of


@contextmanager
def written(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a path to write a folder at: the path itself, or one on this machine whose files go to the URL at the end.

    Whether the URL can be written is tried before anything is done. Nothing goes there if the work fails.

    Parameters
    ----------
    path
        A path, or a URL of object storage.
    force
        Replace what is at the URL: a recording takes the place of a recording alone, other files those of their names.
        Of a path on this machine the caller decides.

    Raises
    ------
    OutputExistsError
        If something is at the URL.
    StorageError
        If it cannot be written; what was written stays here then if the work is done, and the message says where.
    """
    url = url_of(path)
    if not url:
        yield path
        return
    from lockstep.store.storage import COPYING, Storage, StorageError, remove_recording, store_all

    storage = Storage(url)
    there = {name: size for name, size in storage.names().items() if name != COPYING}
    if there and not force:
        raise OutputExistsError(f"{url}: exists already; give another URL, or --force")
    storage.store(COPYING, b"writing")
    base = Path(tempfile.mkdtemp(prefix="lockstep-written-"))
    here = base / url.rpartition("/")[2]
    try:
        yield here
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        with suppress(StorageError):
            storage.remove(COPYING)
        raise
    try:
        if there and is_recording(here):
            remove_recording(storage, there)
        store_all(here, storage)
    except (LockstepError, OSError) as error:
        raise StorageError(
            f"{error}. What was written lies in {here}: lockstep copy {here} {url}"
        ) from error
    shutil.rmtree(base)
