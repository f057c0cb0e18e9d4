"""A plan as a unified diff that `patch` and `git apply` take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from lockstep_migrate.plan import NewFile, Plan

_NEEDS_QUOTES = re.compile(r'[\x00-\x1f"\\\x7f]')


def unified_diff(plan: Plan) -> Iterator[str]:
    """The lines of a diff that `patch -p1` and `git apply` take, with their line ends.

    Bytes that are no UTF-8 come as lone surrogates: write the lines as UTF-8 with `errors="surrogateescape"` and
    without translating line ends, and the bytes are those of the file.
    """
    for file in plan.files:
        if file.changed:
            # Behind a name with a space, a tab tells patch where it ends.
            end = "\t" if " " in str(file.path) else ""
            old_name, new_name = (_quoted(f"{side}/{file.path}") + end for side in "ab")
            old, new = _lines(file.source.data), _lines(file.migrated())
            yield from _ended(difflib.unified_diff(old, new, old_name, new_name))
    for added in plan.new_files:
        yield from _new_file_diff(added)


def _new_file_diff(new: NewFile) -> Iterator[str]:
    mode = "100755" if new.executable else "100644"
    old_name, new_name = _quoted(f"a/{new.path}"), _quoted(f"b/{new.path}")
    yield f"diff --git {old_name} {new_name}\nnew file mode {mode}\n"
    end = "\t" if " " in str(new.path) else ""
    yield from _ended(difflib.unified_diff([], _lines(new.data), "/dev/null", new_name + end))


def _lines(data: bytes) -> list[str]:
    """Lines as patch knows them, which end at a line feed and at nothing else."""
    return re.findall(r"[^\n]*\n|[^\n]+", data.decode("utf-8", "surrogateescape"))


def _ended(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes where it holds what would break the line."""
    if not _NEEDS_QUOTES.search(path):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match[0]):03o}", escaped) + '"'
