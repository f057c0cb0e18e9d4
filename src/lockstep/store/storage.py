"""Object storage by URL, with fsspec: `s3://`, `gs://`, `az://`, `obs://`, `sftp://`, `memory://`.

Every request is tried again where it may have been lost on the way. Recordings that are read are fetched once into a
cache of this user's, and their digests are checked as those of any recording.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lockstep.core.errors import LockstepError, OutputExistsError, UsageError
from lockstep.core.progress import Progress, unheard
from lockstep.core.text import message
from lockstep.store.permissions import make_private_directory, open_private
from lockstep.store.schema import MANIFEST

T = TypeVar("T")

PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""How long to wait before each further try of a request, in seconds."""

PIECE_BYTES = 8 << 20
AT_ONCE = 32
"""How many small files are read by one call."""
COPYING = ".copying"
"""Names what a place is being filled with, and goes when all is there."""

_PACKAGES = {
    "s3": ("s3fs", "storage"),
    "obs": ("s3fs", "storage"),
    "sftp": ("sshfs", "storage"),
    "gs": ("gcsfs", "storage-gs"),
    "az": ("adlfs", "storage-az"),
    "memory": ("fsspec", "storage"),
}
_LASTING = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    ValueError,
    TypeError,
    ImportError,
)
"""Errors that another try does not change."""


class StorageError(LockstepError):
    """Object storage cannot be read or written."""


class NoRecordingThereError(StorageError):
    """There is something at an address, and it is not a recording."""


class Storage:
    """A folder, or a file, in object storage.

    url: As `url_of` gives it.

    Raises UsageError if the package for it is not installed; the message names the extra. Raises StorageError if there
    is no way to it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        scheme, _, self._path = url.partition("://")
        package, extra = _PACKAGES[scheme]
        try:
            importlib.import_module(package)
            fsspec = importlib.import_module("fsspec")
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{url}: {error.name} is not installed here: pip install 'lockstep-numerics[{extra}]'"
            ) from error
        self._scheme = scheme
        self._files = self._tried("", lambda: _file_system(fsspec, scheme, url))
        if scheme == "sftp":  # of the host there is nothing in a path
            _, _, rest = self._path.partition("/")
            self._path = "/" + rest
        if scheme == "memory":
            self._path = "/" + self._path

    def names(self) -> dict[str, int]:
        """Return the files of this folder by their names below it, with their sizes in bytes; {} where there is none.

        Raises StorageError if it cannot be listed.
        """

        def found() -> dict[str, int]:
            with suppress(FileNotFoundError):
                listed = self._files.find(self._path, detail=True)
                prefix = self._path.rstrip("/") + "/"
                return {
                    str(name).removeprefix(prefix): int(about["size"])
                    for name, about in listed.items()
                    if str(name).startswith(prefix)
                }
            return {}

        return self._tried("", found, right="list")

    def size_bytes(self) -> int | None:
        """Return the size of the file that this URL names; None where it names none.

        Raises StorageError if that cannot be asked.
        """

        def asked() -> int | None:
            with suppress(FileNotFoundError):
                about = self._files.info(self._path)
                return int(about["size"]) if about.get("type") == "file" else None
            return None

        return self._tried("", asked, right="list")

    def read(self, name: str) -> bytes:
        """Return all bytes of a small file. Raises StorageError if it cannot be read."""
        return self._tried(name, lambda: bytes(self._files.cat_file(self._at(name))))

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return all bytes of small files by their names, many at once; each whose request was lost is read again.

        Raises StorageError if one cannot be read.
        """
        found: dict[str, bytes] = {}
        for at in range(0, len(names), AT_ONCE):
            paths = {self._at(name): name for name in names[at : at + AT_ONCE]}
            told = self._tried("", lambda paths=paths: self._files.cat([*paths], on_error="return"))  # type: ignore[misc]
            for path, name in paths.items():
                data = told.get(path)
                found[name] = data if isinstance(data, bytes) else self.read(name)
        return found

    def fetch(self, name: str, target: Path, size_bytes: int) -> None:
        """Bring a file here, by ranges and from where an earlier try ended.

        Raises StorageError if it cannot be read. Raises OSError if it cannot be written here.
        """
        make_private_directory(target.parent, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        at = part.stat().st_size if part.exists() else 0
        with open_private(part, "r+b" if 0 < at <= size_bytes else "wb") as file:
            at = file.seek(0, 2)
            while at < size_bytes:
                piece = self._range(name, at, min(at + PIECE_BYTES, size_bytes))
                file.write(piece)
                at += len(piece)
        part.replace(target)

    def _range(self, name: str, start: int, stop: int) -> bytes:
        def read() -> bytes:
            piece = bytes(self._files.cat_file(self._at(name), start=start, end=stop))
            if len(piece) != stop - start:
                raise OSError(f"{stop - start} bytes were asked for, {len(piece)} came")
            return piece

        return self._tried(name, read)

    def store(self, name: str, source: Path | bytes) -> None:
        """Put a file there, over one of that name. Raises StorageError if it cannot be written."""
        size_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size

        def put() -> None:
            if self._scheme in ("sftp", "memory"):
                self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
            if isinstance(source, bytes):
                self._files.pipe_file(self._at(name), source)
            else:
                self._files.put_file(str(source), self._at(name))
            there = int(self._files.info(self._at(name))["size"])
            if there != size_bytes:
                raise OSError(f"{size_bytes} bytes were sent, {there} are there")

        self._tried(name, put, right="write")

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises StorageError if it cannot be removed."""

        def drop() -> None:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

        self._tried(name, drop, right="delete")

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}" if name else self._path

    def _tried(self, name: str, work: Callable[[], T], *, right: str = "read") -> T:
        """What some work gives, tried again where a request was lost; `right` is what it takes there."""
        where = f"{self.url}/{name}" if name else self.url
        for pause_s in (*PAUSES_S, None):
            try:
                return work()
            except LockstepError:
                raise
            except Exception as error:  # each of the libraries has a tree of its own
                if (
                    isinstance(error, _LASTING)
                    or "Credentials" in type(error).__name__
                    or pause_s is None
                ):
                    raise StorageError(f"{where}: {_why(error, self._scheme, right)}") from error
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")


def _file_system(fsspec: Any, scheme: str, url: str) -> Any:
    """The file system of a scheme; it keeps no listing, so that what others write is seen."""
    if scheme == "obs":
        endpoint = os.environ.get("OBS_ENDPOINT_URL")
        if not endpoint:
            raise UsageError(
                f"{url}: set OBS_ENDPOINT_URL to the address of the service, as in https://obs.REGION.example.com"
            )
        return fsspec.filesystem(
            "s3", endpoint_url=endpoint, skip_instance_cache=True, use_listings_cache=False
        )
    if scheme == "sftp":
        host = url.partition("://")[2].partition("/")[0]
        user, _, address = host.rpartition("@")
        given = {"username": user} if user else {}
        return fsspec.filesystem("ssh", host=address, skip_instance_cache=True, **given)
    if scheme == "memory":
        return fsspec.filesystem("memory")
    return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)


_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_PROFILE, then the profile of `aws configure`",
    "obs": "AWS_ACCESS_KEY_ID and AWS_PROFILE, then the profile of `aws configure`",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, then the login of `gcloud auth application-default login`",
    "az": "AZURE_STORAGE_CONNECTION_STRING",
    "sftp": "the keys of ~/.ssh and of the SSH agent",
}
"""Where the library of a scheme looks for credentials, in its order."""


def _looked_for(scheme: str) -> str:
    """Where credentials were looked for, in a clause that begins with a comma; "" where that is not known."""
    known = _CREDENTIALS.get(scheme)
    return f", and they are looked for in {known}" if known else ""


def _why(error: Exception, scheme: str, right: str) -> str:
    """An error of a library in words of one line; a request's headers, which may hold a key, are none of them."""
    name = type(error).__name__
    if "Credentials" in name:
        return (
            f"there are no credentials for it{_looked_for(scheme)};"
            " log in with the tool of that service, or set its variables"
        )
    if isinstance(error, FileNotFoundError):
        return "there is no such bucket, folder or file"
    if isinstance(error, PermissionError):
        asked = _looked_for(scheme).removeprefix(", and they ")
        credentials = f" (credentials {asked})" if asked else ""
        return f"access is denied: the right to {right} here is missing{credentials}; ask who owns it for that right"
    return f"{name}: {message(str(error))}"[:300]


# --- recordings in storage ----------------------------------------------------------------------


def in_order(names: Mapping[str, int]) -> list[str]:
    """Return names of files in the order of copying: manifests last, the one at the top at the very end."""
    shown = [name for name in names if not name.startswith(".") and "/." not in name]
    return sorted(shown, key=lambda name: (name.endswith(MANIFEST), -name.count("/"), name))


def fetch_all(storage: Storage, target: Path, told: Progress = unheard) -> None:
    """Bring a folder here, or one file; one that was begun before goes on.

    Raises StorageError if it cannot be read. Raises OSError if it cannot be written here.
    """
    names = storage.names()
    order = in_order(names)
    if not order:
        raise StorageError(f"{storage.url}: there is no such bucket, folder or file")
    key = key_of(storage, names)
    make_private_directory(target, exist_ok=True)
    mark = target / COPYING
    goes_on = mark.exists() and mark.read_text(encoding="ascii") == key
    if not goes_on:
        for part in target.rglob(".*.part"):
            part.unlink()
        mark.write_text(key, encoding="ascii")
    total, done = sum(names[name] for name in order), 0
    for name in order:
        path = target / name
        told(name, done, total)
        if not (goes_on and path.exists() and path.stat().st_size == names[name]):
            storage.fetch(name, path, names[name])
        done += names[name]
    mark.unlink()


def store_all(source: Path, storage: Storage, told: Progress = unheard) -> None:
    """Put a folder into storage; one that was begun before goes on. Raises StorageError if it cannot be written."""
    paths = {str(path.relative_to(source)): path for path in source.rglob("*") if path.is_file()}
    names = {name: path.stat().st_size for name, path in paths.items()}
    order = in_order(names)
    about = "".join(f"{name} {names[name]} {paths[name].stat().st_mtime_ns}\n" for name in order)
    key = hashlib.sha256(about.encode()).hexdigest()
    there = storage.names()
    goes_on = COPYING in there and storage.read(COPYING) == key.encode()
    if not goes_on:
        storage.store(COPYING, key.encode())
    total, done = sum(names[name] for name in order), 0
    for name in order:
        told(name, done, total)
        if not (goes_on and there.get(name) == names[name]):
            storage.store(name, paths[name])
        done += names[name]
    storage.remove(COPYING)


def remove_recording(storage: Storage, names: Mapping[str, int]) -> None:
    """Remove a recording from storage, its manifest first; anything else stays.

    Raises OutputExistsError if something else is there.
    """
    if MANIFEST not in names:
        raise OutputExistsError(
            f"{storage.url}: is not a recording, so --force does not replace it; give another URL"
        )
    for name in reversed(in_order(names)):
        storage.remove(name)


def key_of(storage: Storage, names: Mapping[str, int]) -> str:
    """Return the digest of a folder's content: names, sizes, and manifests, which list the digests of the rest."""
    found = hashlib.sha256()
    for name in sorted(names):
        found.update(f"{name} {names[name]}\n".encode())
        if name.rpartition("/")[2] == MANIFEST:
            found.update(storage.read(name))
    return found.hexdigest()


def cached(url: str, told: Progress = unheard) -> Path:
    """Return a local folder with the recording of a URL; fetches it if the cached one differs.

    Raises StorageError if it cannot be read.
    """
    storage = Storage(url)
    names = storage.names()
    if not names:
        raise StorageError(f"{url}: there is no such bucket, folder or file")
    if MANIFEST not in names and COPYING in names:
        raise StorageError(
            f"{url}: is there in part; a copy goes on, or was interrupted and goes on when you run it again"
        )
    if MANIFEST not in names:
        raise NoRecordingThereError(f"{url}: is not a recording: it holds no {MANIFEST}")
    key = key_of(storage, names)
    place = _cache() / hashlib.sha256(url.encode()).hexdigest()[:16] / key[:16]
    whole = place.with_name(f"{place.name}.whole")
    if not whole.exists():
        fetch_all(storage, place, told)
        whole.touch()
    return place


def _cache() -> Path:
    """Where caches are (XDG Base Directory Specification 0.8)."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return base.expanduser() / "lockstep" / "storage"
