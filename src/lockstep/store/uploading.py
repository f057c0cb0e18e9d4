"""A recording that goes into object storage while it is written: each file as soon as it has its name."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.core.errors import LockstepError, OutputExistsError
from lockstep.store.partial import marked_as_part
from lockstep.store.schema import MANIFEST
from lockstep.store.storage import COPYING, Storage, StorageError, in_order, remove_recording

_LOOKS_EVERY_S = 1.0


@contextmanager
def uploaded(url: str, *, force: bool) -> Iterator[Uploading]:
    """Give a folder on this machine to record into; its files go to the URL, and it is removed at the end.

    Until `Uploading.finish` the manifest there says that the rest is still here. That the URL can be written is tried
    before anything is recorded.

    Raises OutputExistsError if something is there. Raises StorageError if it cannot be written; what was recorded stays
    here then, and the message says where.
    """
    storage = Storage(url)
    there = {name: size for name, size in storage.names().items() if name != COPYING}
    if there and not force:
        raise OutputExistsError(
            f"{url}: exists already; give another URL, or --force to replace a recording"
        )
    if there:
        remove_recording(storage, there)
    storage.store(COPYING, b"recording")
    base = Path(tempfile.mkdtemp(prefix="lockstep-upload-"))
    uploading = Uploading(base / (url.rpartition("/")[2] or "recording"), storage)
    try:
        yield uploading
    finally:
        uploading.finish()
    shutil.rmtree(base)


class Uploading:
    """Looks at a folder on a thread of its own, and puts into storage what is new there.

    place: The folder to record into.
    storage: Where its files go.
    """

    def __init__(self, place: Path, storage: Storage) -> None:
        self.place, self._storage = place, storage
        self._sent: dict[str, tuple[int, int]] = {}
        self._again = f"lockstep copy {place} {storage.url} --force"
        self._reason = f"it is still being uploaded from {place}; if nobody does: {self._again}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lockstep-uploading", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Upload the rest, and remove files that no longer belong to the recording; a second call does nothing.

        Raises StorageError if it cannot be written.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        try:
            self._look(is_last=True)
            for name in self._sent.keys() - self._files().keys():
                self._storage.remove(name)
        except (LockstepError, OSError) as error:
            raise StorageError(
                f"{error}. Not all that was recorded is there; it lies in {self.place}: {self._again}"
            ) from error
        with suppress(
            StorageError
        ):  # who may write and not delete leaves a mark that no reader counts
            self._storage.remove(COPYING)

    def _work(self) -> None:
        while not self._ended.wait(_LOOKS_EVERY_S):
            try:
                self._look(is_last=False)
            except (LockstepError, OSError):
                continue  # the last look tries again, and says so

    def _files(self) -> dict[str, Path]:
        return {
            str(path.relative_to(self.place)): path
            for path in self.place.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }

    def _look(self, *, is_last: bool) -> None:
        """Manifests are read before the other files and sent after them, so that what they list is there."""
        files = self._files()
        held = {name: path.read_bytes() for name, path in files.items() if path.name == MANIFEST}
        for name in in_order(dict.fromkeys(files, 0)):
            about = files[name].stat()
            stamp, is_top = (about.st_size, about.st_mtime_ns), name == MANIFEST
            if self._sent.get(name) == stamp and not (is_top and is_last):
                continue
            content = held.get(name, files[name])
            if isinstance(content, bytes) and is_top and not is_last:
                content = marked_as_part(content, self._reason)
            self._storage.store(name, content)
            self._sent[name] = stamp
