"""Collect the files for another machine: the script's folder and Lockstep itself, each file by its digest."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.plugin import DISTRIBUTION, MEMBERS, own_folders
from lockstep.recordings import is_recording

MOST_BYTES = 256 << 20
"""What a folder that is no repository of git may hold: a data set beside a script is no part of it."""

_NOT_SENT = frozenset({"__pycache__", "node_modules"})
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SentFile:
    """One file.

    name: Where it belongs, relative to its folder there.
    source: Where it lies here, or its content.
    digest: SHA-256 of its content.
    mode: Its permissions there.
    """

    name: str
    source: Path | bytes
    digest: str
    mode: int

    @property
    def size_bytes(self) -> int:
        """How large it is."""
        return self.source.stat().st_size if isinstance(self.source, Path) else len(self.source)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files of one folder."""

    root: Path
    files: tuple[SentFile, ...]

    @property
    def digest(self) -> str:
        """Its name: the digest of names, contents and permissions."""
        lines = sorted(f"{one.digest} {one.mode:o} {one.name}" for one in self.files)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def rows(self) -> list[tuple[str, str, int]]:
        """Return name, digest and mode of each file, as the agent takes them."""
        return [(one.name, one.digest, one.mode) for one in self.files]


def sent_files(root: Path, names: Sequence[str]) -> Bundle:
    """Return the bundle of these files of a folder; links are sent as what they lead to."""
    files = []
    for name in names:
        path = root / name
        mode = 0o700 if os.access(path, os.X_OK) else 0o600
        files.append(SentFile(name, path, _digest(path), mode))
    return Bundle(root, tuple(files))


def everything_below(path: Path) -> Bundle:
    """Return the bundle of all files of a folder, or of one file, named ""."""
    if path.is_file():
        return sent_files(path.parent, [path.name])
    names = sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    )
    return sent_files(path, names)


def tree_around(here: Path) -> Bundle:
    """Return the repository of git around a folder, with its changes and new files, or else the folder itself.

    Recordings and what git ignores stay here.

    Raises UsageError if the folder is no repository and is too large to be sent as a whole.
    """
    top = _git(here, "rev-parse", "--show-toplevel").strip()
    if top:
        listed = _git(Path(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = [name for name in dict.fromkeys(listed.split("\0")) if name]
        root = Path(top)
    else:
        root, names = here, list(_names_below(here))
    recordings: dict[Path, bool] = {}
    names = [
        name
        for name in names
        if (root / name).is_file() and not _is_in_recording(root, Path(name), recordings)
    ]
    size_bytes = sum((root / name).stat().st_size for name in names)
    if not top and size_bytes > MOST_BYTES:
        raise UsageError(
            f"{here} is not a repository of git and holds {size_bytes / 1e6:.0f} MB, so the files of the script are"
            " not known: run git init there and git add the script's files, or start from a folder with them alone"
        )
    return sent_files(root, names)


def lockstep_itself() -> Bundle:
    """Return this installation of Lockstep, the core and its members: the packages, and what names their plug-ins."""
    files: list[SentFile] = []
    for package in map(Path, own_folders()):
        names = sorted(
            str(file.relative_to(package.parent))
            for file in package.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        )
        files += sent_files(package.parent, names).files
    for distribution in (DISTRIBUTION, *(member.distribution for member in MEMBERS)):
        files += _about(distribution)
    return Bundle(Path(own_folders()[0]).parent, tuple(files))


def _about(distribution: str) -> Iterator[SentFile]:
    """What names a distribution and its plug-ins, nothing if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        found = metadata.distribution(distribution)
        folder = f"{distribution.replace('-', '_')}-{found.version}.dist-info"
        for name in ("METADATA", "entry_points.txt"):
            yield made_file(f"{folder}/{name}", found.read_text(name) or "")


def needed_packages() -> dict[str, str]:
    """Return the packages that Lockstep needs, each with the least version, "" where any will do."""
    found = {}
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement, _, marker = line.partition(";")
        if "extra" not in marker:
            name, _, least = requirement.strip().partition(">=")
            found[name.strip()] = least.strip()
    return found


def packed(bundles: Sequence[Bundle], wanted: Collection[str]) -> Iterator[bytes]:
    """Give a stream of tar with the wanted files, each once and named by its digest."""
    done: set[str] = set()
    for file in (one for bundle in bundles for one in bundle.files):
        if file.digest not in wanted or file.digest in done:
            continue
        done.add(file.digest)
        member = tarfile.TarInfo(file.digest)
        member.size = size_bytes = file.size_bytes
        yield member.tobuf(tarfile.GNU_FORMAT)
        with _opened(file) as content:
            while size_bytes:
                # One that shrinks meanwhile is filled up: its digest is another one then, and it is not taken.
                piece = content.read(min(size_bytes, _PIECE_BYTES)) or bytes(
                    min(size_bytes, _PIECE_BYTES)
                )
                size_bytes -= len(piece)
                yield piece
        yield bytes(-member.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _opened(file: SentFile) -> io.BufferedReader | io.BytesIO:
    return file.source.open("rb") if isinstance(file.source, Path) else io.BytesIO(file.source)


def made_file(name: str, text: str, mode: int = 0o600) -> SentFile:
    """Return a file with this text, which lies nowhere here."""
    content = text.encode()
    return SentFile(name, content, hashlib.sha256(content).hexdigest(), mode)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


def _names_below(here: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(here):
        at = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NOT_SENT
            and not (at / name / "pyvenv.cfg").exists()
        )
        yield from (str((at / name).relative_to(here)) for name in sorted(names) if name[0] != ".")


def _is_in_recording(root: Path, name: Path, known: dict[Path, bool]) -> bool:
    """Whether a file belongs to a recording; each folder is looked at once."""
    for folder in name.parents[:-1]:
        if folder not in known:
            known[folder] = is_recording(root / folder)
        if known[folder]:
            return True
    return False


def _git(here: Path, *arguments: str) -> str:
    """What git prints, "" where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return "" if done.returncode else done.stdout
