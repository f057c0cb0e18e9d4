"""Commits of a script's repository: which lie between two, and a copy of the files of one."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError
from lockstep_tune.switches import Ladder, State


@dataclass(frozen=True, slots=True)
class Repository:
    """The git repository that a command runs in.

    root: Its topmost folder.
    """

    root: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The one that a folder is in. Raises UsageError if it is in none, or git is not there."""
        return cls(Path(_git(folder, "rev-parse", "--show-toplevel")))

    def ladder(self, text: str) -> Ladder:
        """`good..bad` as a ladder of commits, oldest first.

        Raises UsageError if they are no such commits, or the second does not follow from the first.
        """
        good, dots, bad = text.partition("..")
        if not (good and dots and bad):
            raise UsageError(f"--commits {text}: write good..bad, as in v1.0..HEAD")
        first = _git(self.root, "rev-parse", "--verify", "--quiet", f"{good}^{{commit}}", what=good)
        _git(self.root, "rev-parse", "--verify", "--quiet", f"{bad}^{{commit}}", what=bad)
        listed = _git(
            self.root, "rev-list", "--reverse", "--ancestry-path", "--topo-order", f"{good}..{bad}"
        )
        if not listed:
            raise UsageError(f"--commits {text}: {bad} does not follow from {good}")
        states = []
        for commit in (first, *listed.split()):
            words = _git(self.root, "show", "-s", "--format=%h %s", commit)
            states.append(State(words[:72], commit=commit))
        return Ladder("commit", tuple(states))

    def copy(self, commit: str, into: Path) -> None:
        """Write the files of a commit into a folder, and link what the repository does not hold (data, outputs).

        Raises UsageError if git cannot.
        """
        archive = into.with_suffix(".tar")
        _git(self.root, "archive", "--format=tar", f"--output={archive}", commit)
        with tarfile.open(archive) as opened:
            opened.extractall(into, filter="fully_trusted")  # git wrote it, of this repository
        archive.unlink()
        others = _git(self.root, "ls-files", "--others", "--directory", "--no-empty-directory")
        for name in others.splitlines():
            link = into / name.rstrip("/")
            if link.name != "__pycache__" and link.parent.is_dir() and not link.exists():
                with suppress(OSError):
                    link.symlink_to(self.root / name.rstrip("/"))

    def redirected(self, command: Sequence[str], copy: Path) -> list[str]:
        """The command, with paths into the repository led into the copy."""
        root = str(self.root)
        return [
            str(copy) + word[len(root) :] if word.startswith(f"{root}/") and Path(word) != Path(command[0]) else word
            for word in command
        ]  # fmt: skip

    def folder_in(self, copy: Path) -> Path:
        """The current folder as it is called in a copy."""
        with suppress(ValueError):
            return copy / Path.cwd().resolve().relative_to(self.root.resolve())
        return Path.cwd()


def _git(folder: Path, *arguments: str, what: str = "") -> str:
    program = shutil.which("git")
    if program is None:
        raise UsageError("--commits needs git, which is not installed")
    ended = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        reason = ended.stderr.strip().partition("\n")[0] or f"no commit {what}"
        raise UsageError(f"--commits: {reason}")
    return ended.stdout.strip()
