"""The call stacks of a recording, and which of their files are the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import polars as pl

from lockstep.core.records import Frame

_SEPARATOR = re.compile(r"[/\\]")


def frames_in(table: pl.DataFrame, own: Sequence[str]) -> dict[int, tuple[Frame, ...]]:
    """Return call stacks by number, innermost frame first.

    Parameters
    ----------
    table
        Rows as in `lockstep.store.schema.STACKS`.
    own
        The user's own files by their whole paths.
    """
    libraries = _libraries(table["file"].unique().to_list(), own)
    stacks: dict[int, list[Frame]] = {}
    for number, file, line, function in table.iter_rows():
        stacks.setdefault(number, []).append(Frame(file, line, function, file in libraries))
    return {number: tuple(frames) for number, frames in stacks.items()}


def _libraries(files: Iterable[str], own: Sequence[str]) -> set[str]:
    """Files of stacks that belong to installed packages, given the user's own ones by their whole paths.

    Stacks name a file from the folder or package on that it was found in. Recordings of earlier builds do not tell
    which files are the user's own: then none counts as a library's.
    """
    ends = {
        tuple(parts[start:])
        for parts in (_SEPARATOR.split(file) for file in own)
        for start in range(len(parts))
    }
    return {
        file
        for file in files
        if own and not file.startswith("<") and tuple(_SEPARATOR.split(file)) not in ends
    }
