"""Keep the source lines around call stacks, as they were when the training ran."""

from __future__ import annotations

import linecache
import stat
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lockstep.core.secrets import masked
from lockstep.store.encoding import Row

AROUND = 3
"""Lines that are kept before and behind each."""

_MOST_CHARACTERS = 300
"""Of one line."""

_MOST_KEPT = 400_000
"""Characters that are kept of all files together."""

_MOST_BYTES = 4 << 20
"""Of one file: larger ones are no source that a person wrote."""


class NamedLine(NamedTuple):
    """A line that a call stack names: the file as stacks call it, where it lies, and the number."""

    file: str
    path: str
    line: int


def rows_around(named: Iterable[NamedLine], since_s: float) -> list[Row]:
    """Rows of `schema.SOURCES` for these lines and those around, the first ones first until there is enough.

    Nothing is kept of a file that was written to after recording began, as it may not be what ran; nor of one that
    cannot be read. Secrets are masked.

    named: The most wanted ones first.
    since_s: When recording began, in seconds since the epoch.
    """
    kept: dict[tuple[str, int], str] = {}
    left = _MOST_KEPT
    lines_of = cache(lambda path: _lines(path, since_s))
    for one in named:
        found = lines_of(one.path)
        for number in _around(one.line, len(found)):
            if (one.file, number) not in kept:
                text = masked(found[number - 1].rstrip()[:_MOST_CHARACTERS])
                left -= len(text) + 1
                kept[one.file, number] = text
        if left < 0:
            break
    return [(file, number, text) for (file, number), text in sorted(kept.items())]


def _around(line: int, count: int) -> Iterator[int]:
    if 1 <= line <= count:
        yield from range(max(1, line - AROUND), min(count, line + AROUND) + 1)


def _lines(path: str, since_s: float) -> tuple[str, ...]:
    """The lines of a file; of code that lies in none, as in a notebook, those that Python keeps for it."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return _kept_by_python(path)
    if (
        not stat.S_ISREG(found.st_mode)
        or found.st_size > _MOST_BYTES
        or found.st_mtime > since_s
        or not Path(path).is_absolute()
    ):
        return ()
    try:
        with tokenize.open(path) as file:
            return tuple(file.read().splitlines())
    except (OSError, SyntaxError, ValueError):  # gone by now, or no text: ValueError of its bytes
        return ()


def _kept_by_python(path: str) -> tuple[str, ...]:
    known = linecache.cache.get(path, ())
    return tuple(known[2]) if len(known) == 4 else ()
