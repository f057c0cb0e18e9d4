"""Small folders and plans for the tests of files."""

import re
from pathlib import Path, PurePosixPath

from lockstep_migrate.engine.text import read_plain
from lockstep_migrate.files.collection import Collection, Kind, collect
from lockstep_migrate.plan import Edit, FilePlan, Mention, NewFile, Outcome, Plan, Span


def plant(root: Path, files: dict[str, bytes | str]) -> Path:
    """Write files below `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Every file below `root` with its bytes, folders left out."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def file_plan(path: PurePosixPath, data: bytes, old: str = "cuda", new: str = "npu") -> FilePlan:
    """A plan that replaces a word everywhere."""
    source = read_plain(data)
    mentions = tuple(
        Mention("test", Outcome.REWRITTEN, span, "renamed", edits=(Edit(span, new),))
        for span in (Span(*match.span()) for match in re.finditer(old, source.text))
    )
    return FilePlan(path, source, mentions)


def plan_of(
    collection: Collection, old: str = "cuda", new: str = "npu", adding: tuple[NewFile, ...] = ()
) -> Plan:
    """A plan that replaces a word in every Python and shell file of a collection."""
    files = tuple(
        file_plan(found.path, found.location.read_bytes(), old, new)
        for found in collection.files
        if found.kind in {Kind.PYTHON, Kind.SHELL}
    )
    return Plan("npu", files, new_files=adding)


def plan_for(root: Path, **options: object) -> Plan:
    """The plan for everything below `root`."""
    return plan_of(collect([root]), **options)  # type: ignore[arg-type]


LAUNCH = NewFile(PurePosixPath("new/run.sh"), b"#!/bin/sh\n", "launches", executable=True)
"""A file that migrating adds."""
