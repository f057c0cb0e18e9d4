"""A file or folder that a verb reads, wherever it lies: one in object storage is fetched for as long as it is read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.core.errors import RecordingError
from lockstep.store.directory import is_recording
from lockstep.store.schema import MANIFEST
from lockstep.store.urls import url_of


def _every(name: str) -> bool:
    return True


@contextmanager
def fetched(path: Path, wanted: Callable[[str], bool] = _every) -> Iterator[Path]:
    """Give a path on this machine for a path or a URL; what is fetched is removed at the end.

    It is fetched anew each time: a file that is no recording has no digests by which an older copy is known.
    A `RecordingError` about what was fetched names the URL.

    Parameters
    ----------
    path
        A path, or a URL of a file or folder in object storage.
    wanted
        Which files of a folder are fetched, by their names below it.

    Raises
    ------
    StorageError
        If it cannot be read, or none of its files is wanted.
    """
    url = url_of(path)
    if not url:
        yield path
        return
    from lockstep.store.storage import Storage, StorageError

    storage = Storage(url)
    names = {name: size for name, size in storage.names().items() if wanted(name)}
    size_bytes = None if names else storage.size_bytes()
    if not names and size_bytes is None:
        raise StorageError(f"{url}: there is no such bucket, folder or file, or none to read in it")
    with tempfile.TemporaryDirectory(prefix="lockstep-fetched-") as folder:
        here = Path(folder, url.rpartition("/")[2])
        for name, size in names.items():
            storage.fetch(name, here / name, size)
        if size_bytes is not None:
            storage.fetch("", here, size_bytes)
        try:
            yield here
        except RecordingError as error:
            where = error.where.replace(str(here), url)
            raise type(error)(where, error.what, advice=error.advice) from error


def is_recording_at(place: Path) -> bool:
    """Whether a directory, or a folder of object storage by its URL, is a recording.

    Raises
    ------
    StorageError
        If object storage cannot be read.
    """
    url = url_of(place)
    if not url:
        return is_recording(place)
    from lockstep.store.storage import Storage

    return MANIFEST in Storage(url).names()
