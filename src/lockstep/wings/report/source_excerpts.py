"""Excerpts of source around lines that a page names, as they were kept when recording."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping

from lockstep.store.reader import Recording
from lockstep.wings.report.comparison_types import Excerpt

AROUND = 3
"""Lines on either side."""

_MOST_EXCERPTS = 4000


def excerpts(places: Iterable[str], recordings: Iterable[Recording]) -> dict[str, Excerpt]:
    """Return the kept lines around each `file:line`; places without kept lines are left out.

    Where several recordings keep the line, the first one's text is taken.

    Raises CorruptError if a table of lines is damaged.
    """
    kept = [_lines_of(recording) for recording in recordings]
    found: dict[str, Excerpt] = {}
    for place in places:
        if len(found) == _MOST_EXCERPTS:
            break
        file, _, number = place.rpartition(":")
        line = int(number) if number.isdecimal() else -1
        known = next((lines[file] for lines in kept if line in lines.get(file, {})), None)
        if known is not None:
            found[place] = _excerpt(known, line)
    return found


def _lines_of(recording: Recording) -> dict[str, Mapping[int, str]]:
    """Lines by file, of all ranks, which run the same files: the first rank's before the others'."""
    found: dict[str, Mapping[int, str]] = {}
    for rank in recording.ranks.values():
        for file, lines in rank.source_lines.items():
            known = found.get(file)
            found[file] = lines if known is None else ChainMap(dict(known), lines)
    return found


def _excerpt(lines: Mapping[int, str], line: int) -> Excerpt:
    first = last = line
    while first > line - AROUND and first - 1 in lines:
        first -= 1
    while last < line + AROUND and last + 1 in lines:
        last += 1
    return Excerpt(first, tuple(lines[number] for number in range(first, last + 1)))
