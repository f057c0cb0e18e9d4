"""Packages that a project imports and that nothing here knows: they may have kernels for the old device alone."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib import resources
from pathlib import PurePosixPath

from lockstep_migrate.engine.spans import Cover
from lockstep_migrate.files.surroundings import surroundings
from lockstep_migrate.plan import FilePlan, Mention, Outcome, Span

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<of>[A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+(?P<plain>[A-Za-z_]\w*))",
    re.MULTILINE,
)
_TRIED = re.compile(r"\btry:[ \t]*\n\Z")


def unknown_packages(
    files: Iterable[FilePlan], known: Collection[str]
) -> tuple[PurePosixPath, Mention] | None:
    """The first import of a package that nothing here knows, with a row that names all such; None if there is none.

    `files`: the Python files; an import of which something is listed already is left out.
    `known`: further names that are no such packages, as the project's own modules are.
    """
    found: dict[str, tuple[PurePosixPath, Span]] = {}
    known = {*known, *_plain_packages(), *sys.stdlib_module_names}
    for file in files:
        listed = Cover(one.span for one in file.mentions if one.outcome is Outcome.LISTED)
        for name, span, line in _imported(file.source.text):
            if name not in known and not surroundings().package(name) and not listed.overlaps(line):
                found.setdefault(name, (file.path, span))
    if not found:
        return None
    path, span = next(iter(found.values()))
    others = ", ".join(sorted(found))
    reason = f"no table knows {others}: kernels in it may be for the old device alone"
    return path, Mention("libraries/unknown", Outcome.LISTED, span, reason)


def _imported(text: str) -> Iterator[tuple[str, Span, Span]]:
    """The packages that a module imports, each with its place and its line.

    Those that it tries to import and goes on without are left out.
    """
    for match in _IMPORT.finditer(text):
        if not _TRIED.search(text, max(0, match.start() - 200), match.start()):
            end = text.find("\n", match.end())
            line = Span(match.start(), end if end >= 0 else len(text))
            yield (
                match["of"] or match["plain"],
                Span(*match.span("of" if match["of"] else "plain")),
                line,
            )


@functools.cache
def _plain_packages() -> frozenset[str]:
    """Well-known packages that have no kernels for one device alone, or of which other tables speak."""
    text = resources.files(__package__).joinpath("plain_packages.txt").read_text("utf-8")
    return frozenset(word for line in text.splitlines() if line[:1] != "#" for word in line.split())
