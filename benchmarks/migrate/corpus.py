"""Gathers the scripts that are migrated from clones of public repositories; `corpus.yaml` says which.

python benchmarks/migrate/corpus.py --mirror clones --into scripts
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

LIST = Path(__file__).with_name("corpus.yaml")
SUFFIXES = frozenset({".py", ".ipynb", ".sh", ".bash", ".slurm", ".yaml", ".yml", ".cu", ".cuh"})
_CHECKPOINTS = ".ipynb_checkpoints"
"""Where Jupyter keeps older states of notebooks: nobody's sources."""


@dataclass(frozen=True)
class Repository:
    """One public repository at one commit; `paths` are the files and folders to take, all where there are none."""

    name: str
    commit: str
    paths: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where its files go."""
        return self.name.replace("/", "__")


@dataclass(frozen=True)
class Gathered:
    """How many repositories and files were gathered, what was not to be had, and a digest of all files."""

    repositories: int
    files: int
    missing: tuple[str, ...]
    digest: str


def repositories(file: Path = LIST) -> list[Repository]:
    """The repositories that the list names."""
    return [
        Repository(entry["name"], entry["commit"], tuple(entry.get("paths", ())))
        for entry in yaml.safe_load(file.read_text())["repositories"]
    ]


def gather(
    wanted: Sequence[Repository], mirror: Path, into: Path, *, every_file: bool = False
) -> Gathered:
    """Write each repository's scripts below `into`, of files with equal bytes the first one only; or every file."""
    seen: set[bytes] = set()
    missing = []
    for repository in wanted:
        clone = _clone(mirror, repository)
        if clone is None:
            missing.append(repository.name)
            continue
        for path, data in _files(clone, repository, every_file=every_file):
            content = hashlib.sha256(data).digest()
            if every_file or content not in seen:
                seen.add(content)
                file = into / repository.folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
    digest = hashlib.sha256(b"".join(sorted(seen))).hexdigest()[:12]
    return Gathered(len(wanted) - len(missing), len(seen), tuple(missing), digest)


def found_in(folder: Path, wanted: Sequence[Repository]) -> Gathered:
    """What was gathered into a folder before."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    contents = sorted(hashlib.sha256(file.read_bytes()).digest() for file in files)
    there = {path.name for path in folder.iterdir()}
    missing = tuple(one.name for one in wanted if one.folder not in there)
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:12]
    return Gathered(len(there), len(files), missing, digest)


def _clone(mirror: Path, repository: Repository) -> Path | None:
    """The git directory that holds the commit."""
    owner, _, name = repository.name.partition("/")
    places = [mirror / owner / name, mirror / repository.folder]
    for place in places:
        for directory in (place / ".git", place):
            git = [
                "git",
                f"--git-dir={directory}",
                "cat-file",
                "-e",
                f"{repository.commit}^{{tree}}",
            ]
            if directory.is_dir() and subprocess.run(git, capture_output=True).returncode == 0:
                return directory
    return None


def _files(
    clone: Path, repository: Repository, *, every_file: bool
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Paths and bytes of the commit's files, or of those that are scripts; links are left out."""
    git = ["git", f"--git-dir={clone}"]
    listing = subprocess.run(
        [*git, "ls-tree", "-r", "-z", repository.commit, "--", *repository.paths],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    for entry in filter(None, listing.split("\0")):
        (mode, _, name), path = (
            entry.partition("\t")[0].split(),
            PurePosixPath(entry.partition("\t")[2]),
        )
        script = path.suffix in SUFFIXES and _CHECKPOINTS not in path.parts
        if mode.startswith("100") and (every_file or script):
            # One by one: a clone may lack the large data files that a whole archive would ask for.
            blob = subprocess.run([*git, "cat-file", "blob", name], capture_output=True)
            if blob.returncode == 0:
                yield path, blob.stdout


def main() -> int:
    """Gather everything that is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mirror", type=Path, required=True, help="folder that holds the clones")
    parser.add_argument("--into", type=Path, required=True, help="folder that takes the scripts")
    parser.add_argument("--list", type=Path, default=LIST, help="the repositories [corpus.yaml]")
    options = parser.parse_args()
    gathered = gather(repositories(options.list), options.mirror, options.into)
    print(
        f"{gathered.files} files of {gathered.repositories} repositories, digest {gathered.digest}"
    )
    for name in gathered.missing:
        print(
            f"not there at its commit: {name}; {options.list.name} says how to clone it",
            file=sys.stderr,
        )
    return 1 if gathered.missing else 0


if __name__ == "__main__":
    sys.exit(main())
