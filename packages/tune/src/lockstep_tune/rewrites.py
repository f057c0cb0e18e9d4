"""Rewrites of a script, a hunk of a diff each: read, put into a copy of the project, and run there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.errors import NotARecordingError, RecordingError, reason_of

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One hunk of a diff: lines of a file and what stands there instead.

    file: From the current folder.
    line: Of the first line in `before`, counted from 1.
    before, after: The lines, with their ends.
    """

    file: str
    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def name(self) -> str:
        """Where the first line is that changes."""
        pairs = zip(self.before, self.after, strict=False)
        same = next((at for at, (old, new) in enumerate(pairs) if old != new), 0)
        return f"{self.file}:{self.line + same}"


def read_rewrites(diff: Path, folder: Path) -> tuple[Rewrite, ...]:
    """Read the hunks of a unified diff, each a rewrite of its own.

    folder: What paths in it start from; `a/` and `b/` before them, as git has them, are left out.

    Raises RecordingError if it cannot be read, is no unified diff, or does not fit the files.
    """
    try:
        lines = diff.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(diff, f"cannot be read ({reason_of(error)})") from error
    found, file, at = [], "", 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith("+++ "):
            file = _path(line[4:].partition("\t")[0].strip(), folder)
        started = _HUNK.match(line)
        if started is not None and file:
            before, after, at = _sides(lines, at)
            found.append(Rewrite(file, int(started[1]), before, after))
    if not found:
        raise NotARecordingError(diff, "no unified diff: it holds no hunk")
    for one in found:
        if not _fits(one, folder):
            raise RecordingError(diff, f"the hunk at {one.name} does not fit the file as it is")
    return tuple(found)


def _path(name: str, folder: Path) -> str:
    bare = name[2:] if name[:2] in ("a/", "b/") and not (folder / name).exists() else name
    path = Path(bare)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else bare


def _sides(lines: Sequence[str], at: int) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Both sides of the hunk whose first line is at `at`, and where the next one may begin."""
    before, after = [], []
    while at < len(lines) and lines[at][:1] in "+- \\\n" and not lines[at].startswith("--- "):
        mark, text = lines[at][:1], lines[at][1:]
        if mark in "- ":
            before.append(text)
        if mark in "+ ":
            after.append(text)
        if mark == "\n":  # an empty line whose space an editor took away
            before.append("\n")
            after.append("\n")
        at += 1
    return tuple(before), tuple(after), at


def _fits(one: Rewrite, folder: Path) -> bool:
    try:
        lines = (folder / one.file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    start = one.line - 1
    there = lines[start : start + len(one.before)]
    return there == [line.rstrip("\r\n") for line in one.before]


@contextmanager
def rewritten(
    command: Sequence[str], rewrites: Sequence[Rewrite], streams: dict[str, Any]
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Give the command and streams for `launch` that run it in a copy of the current folder with these rewrites.

    Scripts are copied, everything else is linked; without a rewrite nothing is.
    """
    if not rewrites:
        yield list(command), streams
        return
    root = Path.cwd()
    with TemporaryDirectory(prefix="lockstep-rewritten-", ignore_cleanup_errors=True) as name:
        copy = Path(name) / root.name
        _mirror(root, copy)
        for file in dict.fromkeys(one.file for one in rewrites):
            lines = (root / file).read_text(encoding="utf-8").splitlines(keepends=True)
            for one in sorted(rewrites, key=lambda one: -one.line):
                if one.file == file:
                    lines[one.line - 1 : one.line - 1 + len(one.before)] = one.after
            (copy / file).write_text("".join(lines), encoding="utf-8")
        words = [_moved(word, root, copy) for word in command[1:]]
        yield [command[0], *words], {**streams, "cwd": copy}


def _moved(word: str, root: Path, copy: Path) -> str:
    return str(copy) + word[len(str(root)) :] if word.startswith(f"{root}/") else word


def _mirror(folder: Path, into: Path) -> None:
    """Copy scripts and link the rest, whole folders where they hold no script."""
    into.mkdir()
    for one in folder.iterdir():
        target = into / one.name
        if one.is_dir() and _holds_scripts(one):
            _mirror(one, target)
        elif one.suffix == ".py" and one.is_file():
            target.write_bytes(one.read_bytes())
        elif one.name != "__pycache__":
            target.symlink_to(one)


def _holds_scripts(folder: Path) -> bool:
    is_foreign = folder.name.startswith(".") or (folder / "pyvenv.cfg").exists()
    return not (is_foreign or folder.is_symlink()) and any(folder.rglob("*.py"))
