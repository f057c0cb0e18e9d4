"""Collecting the files below the paths that were given, each with what it is."""

from __future__ import annotations

import enum
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from lockstep.errors import UsageError
from lockstep_migrate.engine.text import SourceText, UndecodableError, read_plain, read_python
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.plan import Failure

REPORT_FOLDER = "lockstep-migrate"
"""Where reports go inside an output folder."""

CHANGES = "changes.csv"
"""The report that every output folder has."""

SOURCE_BYTES = 20 << 20
"""No source that a person wrote is larger."""

NOTEBOOK_BYTES = 200 << 20
"""Notebooks carry their pictures with them."""

SMALL_BYTES = 1 << 20
"""Larger JSON or YAML files are data (annotations, vocabularies, results), larger scripts installers."""

SKIPPED_FOLDERS = listed_names("skipped folders")


class Kind(enum.Enum):
    """The kind of a file, which decides its reader."""

    PYTHON = "python"
    NOTEBOOK = "notebook"
    SHELL = "shell"
    CONFIG = "config"
    NATIVE = "native"
    OTHER = "other"


_SMALL = frozenset({Kind.CONFIG, Kind.SHELL})


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file.

    path: Relative to the root of its collection.
    location: Where it lies.
    kind: What it is.
    """

    path: PurePosixPath
    location: Path
    kind: Kind


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link inside a collected folder. It is kept as a link and never followed."""

    path: PurePosixPath
    location: Path


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is not read, and why."""

    path: PurePosixPath
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything below the given paths, each list in the order of paths.

    root: The folder to which all paths are relative: the given folder, the folder of a given file, or the deepest
        common folder of several.
    single: Whether one file was given rather than a folder or several paths.
    files: Regular files of every kind.
    folders: Folders that were entered, so that empty ones can be made again.
    links: Symbolic links.
    skipped: What is neither read nor copied.
    failures: What could not be read at all.
    """

    root: Path
    single: bool = False
    files: tuple[Found, ...] = ()
    folders: tuple[PurePosixPath, ...] = ()
    links: tuple[Link, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failures: tuple[Failure, ...] = ()


def collect(paths: Sequence[Path], *, exclude: Iterable[Path] = ()) -> Collection:
    """Find every file below `paths`, each once, in an order that does not depend on the file system.

    Folders of `SKIPPED_FOLDERS`, `*.egg-info` and virtual environments are not entered, unless one of them was given
    itself. Links in a folder are never followed, so that no loop and no way out of the folder exists; a link that was
    given itself is.

    Raises UsageError if nothing was given, or a path does not exist or is no file or folder.
    """
    if not paths:
        raise UsageError("nothing to migrate: give a file, a folder or a notebook")
    for path in paths:
        _must_be_readable_kind(path)
    root = _root(paths)
    walk = _Walk(root, frozenset(path.resolve() for path in exclude))
    for path in paths:
        if path.is_dir():
            walk.folder(_absolute(path))
        else:
            walk.given_file(_absolute(path))
    single = len(paths) == 1 and not paths[0].is_dir()
    return walk.collection(single)


def read(found: Found) -> SourceText:
    """The text of a file that is to be migrated.

    Raises UndecodableError if it is too large to be a source, or no text. Raises OSError if it cannot be read.
    """
    limit = NOTEBOOK_BYTES if found.kind is Kind.NOTEBOOK else SOURCE_BYTES
    with found.location.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UndecodableError(f"is larger than {limit >> 20} MiB: no source; leave it out")
    return read_python(data) if found.kind is Kind.PYTHON else read_plain(data)


def failure(found: Found, error: OSError | UndecodableError) -> Failure:
    """The failure to note for a file that `read` could not give."""
    if isinstance(error, OSError):
        return Failure(found.path, f"cannot be read: {error.strerror or error}")
    return Failure(found.path, str(error))


@dataclass(slots=True)
class _Walk:
    root: Path
    exclude: frozenset[Path]
    files: dict[PurePosixPath, Found] = field(default_factory=dict)
    folders: set[PurePosixPath] = field(default_factory=set)
    links: dict[PurePosixPath, Link] = field(default_factory=dict)
    skipped: dict[PurePosixPath, str] = field(default_factory=dict)
    failures: dict[PurePosixPath, Failure] = field(default_factory=dict)

    def collection(self, single: bool) -> Collection:
        """What was found, in order."""
        return Collection(
            root=self.root,
            single=single,
            files=tuple(self.files[path] for path in sorted(self.files)),
            folders=tuple(sorted(self.folders)),
            links=tuple(self.links[path] for path in sorted(self.links)),
            skipped=tuple(Skipped(path, self.skipped[path]) for path in sorted(self.skipped)),
            failures=tuple(self.failures[path] for path in sorted(self.failures)),
        )

    def given_file(self, location: Path) -> None:
        """A file that was named by itself: it must be one that can be migrated."""
        path = self._relative(location)
        try:
            kind = kind_of(location)
        except OSError as error:
            self.failures[path] = Failure(path, f"cannot be read: {error.strerror}")
            return
        if kind is Kind.OTHER:
            self.failures[path] = Failure(path, "is no Python, notebook, shell or settings file")
        self.files[path] = Found(path, location, kind)

    def folder(self, top: Path) -> None:
        """All of a folder. The stack is a list, so that no depth of folders is too deep."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            self.folders.add(self._relative(folder))
            for entry in self._entries(folder):
                if entry.is_symlink():
                    self._link(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    waiting += self._enter(Path(entry.path))
                else:
                    self._file(entry)

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except OSError as error:
            path = self._relative(folder)
            self.failures[path] = Failure(path, f"folder cannot be read: {error.strerror}")

    def _enter(self, folder: Path) -> Iterator[Path]:
        try:
            reason = _why_skipped(folder)
        except OSError as error:
            path = self._relative(folder)
            self.failures[path] = Failure(path, f"folder cannot be read: {error.strerror}")
            return
        if self.exclude and folder.resolve() in self.exclude:
            reason = "the output folder"
        if reason:
            self.skipped[self._relative(folder)] = reason
        else:
            yield folder

    def _link(self, location: Path) -> None:
        path = self._relative(location)
        self.links[path] = Link(path, location)
        target = Path(os.path.realpath(location))
        if not os.path.exists(target):  # noqa: PTH110 - Path.exists raises where nothing may be read
            self.skipped[path] = "a link that leads nowhere"
        elif not target.is_relative_to(self.root.resolve()):
            self.skipped[path] = (
                f"a link out of the folder: give {target} as a path of its own to have it migrated"
            )

    def _file(self, entry: os.DirEntry[str]) -> None:
        location = Path(entry.path)
        path = self._relative(location)
        try:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or _is_aside(location):
                self.skipped[path] = "no regular file" if not _is_aside(location) else "half a file"
                return
            kind = kind_of(location)
        except OSError as error:
            self.failures[path] = Failure(path, f"cannot be read: {error.strerror}")
            return
        if kind in _SMALL and status.st_size > SMALL_BYTES:
            self.skipped[path] = f"larger than {SMALL_BYTES >> 20} MiB: data, no {kind.value}"
            kind = Kind.OTHER
        self.files[path] = Found(path, location, kind)

    def _relative(self, location: Path) -> PurePosixPath:
        return PurePosixPath(location.relative_to(self.root).as_posix())


def from_here(path: Path) -> str:
    """A path as it is typed in the current folder: in full where it leads out of that."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def _must_be_readable_kind(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give a file or a folder") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{path}: neither a file nor a folder")


def _absolute(path: Path) -> Path:
    # Without resolving links: a file that was given through a link keeps its name.
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`


def _root(paths: Sequence[Path]) -> Path:
    tops = [_absolute(path) if path.is_dir() else _absolute(path).parent for path in paths]
    return Path(os.path.commonpath(tops))


def _is_aside(location: Path) -> bool:
    """Whether this is output of Lockstep's that never got its name, because the process was killed."""
    return location.name.startswith(".lockstep-") and location.name.endswith(".part")


def _why_skipped(folder: Path) -> str:
    if folder.name in SKIPPED_FOLDERS or folder.name.endswith(".egg-info") or _is_aside(folder):
        return "holds no sources of its own"
    if (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir():
        return "an environment with installed packages"
    if (folder / REPORT_FOLDER / CHANGES).is_file():
        return "written by an earlier run; give it as a path of its own to have it migrated"
    return ""


# -------------------------------------------------------------------------------------- kinds

_KIND_FROM_SUFFIX = {
    **dict.fromkeys((".py", ".pyw", ".pyi"), Kind.PYTHON),
    ".ipynb": Kind.NOTEBOOK,
    **dict.fromkeys((".sh", ".bash", ".zsh", ".ksh", ".bat", ".cmd"), Kind.SHELL),
    **dict.fromkeys((".fish", ".csh", ".tcsh", ".ps1"), Kind.SHELL),
    **dict.fromkeys((".slurm", ".sbatch", ".pbs", ".lsf"), Kind.SHELL),
    **dict.fromkeys((".mk", ".dockerfile", ".def"), Kind.SHELL),
    **dict.fromkeys((".yaml", ".yml", ".json", ".jsonc", ".jsonnet", ".toml"), Kind.CONFIG),
    **dict.fromkeys((".cfg", ".ini", ".conf", ".gin", ".nix", ".tf", ".hcl"), Kind.CONFIG),
    ".env": Kind.SHELL,
    **dict.fromkeys((".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c"), Kind.NATIVE),
    **dict.fromkeys((".h", ".hpp", ".hxx", ".hh", ".inl", ".pyx", ".cmake"), Kind.NATIVE),
}
_KIND_FROM_NAME = (
    (re.compile(r"(Dockerfile|Containerfile|(GNU)?[Mm]akefile)([.\-_].*)?"), Kind.SHELL),
    (re.compile(r"\.?[Jj]ustfile|Procfile|Jenkinsfile|Vagrantfile|Singularity(\..*)?"), Kind.SHELL),
    (re.compile(r"(.*[\-_.])?(requirements|constraints)([\-_.].*)?\.(txt|in)"), Kind.CONFIG),
    (re.compile(r"CMakeLists\.txt"), Kind.NATIVE),
    (re.compile(r"\.\w*env(\..*)?"), Kind.SHELL),
    (re.compile(r"Pipfile"), Kind.CONFIG),
)
_SHEBANG = re.compile(rb"#!\s*\S*?(?:/env\s+(?:-\S+\s+)*)?([\w.]+)(?:\s|$)")


def kind_of(location: Path) -> Kind:
    """What a file is: by its name, or by its first line where it has no suffix.

    Raises OSError if the first line is needed and cannot be read.
    """
    name = location.name
    for pattern, kind in _KIND_FROM_NAME:
        if pattern.fullmatch(name):
            return kind
    suffix = location.suffix.lower()
    if suffix:
        return _KIND_FROM_SUFFIX.get(suffix, Kind.OTHER)
    with location.open("rb") as file:
        return _kind_from_first_line(file.read(256))


def _kind_from_first_line(start: bytes) -> Kind:
    match = _SHEBANG.match(start.split(b"\n", 1)[0])
    program = match[1].decode("ascii", "replace") if match else ""
    if program.startswith(("python", "pypy")):
        return Kind.PYTHON
    return Kind.SHELL if program in {"sh", "bash", "dash", "zsh", "ksh"} else Kind.OTHER
