"""The recordings below a folder, those that cannot be read among them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import NotARecordingError, RecordingError
from lockstep.recordings import MANIFEST, Recording, open_recording

_DEEPEST = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording below a folder.

    name: Its path from the folder.
    recording: None where it cannot be read.
    why: Why it cannot be read, or "".
    """

    name: str
    recording: Recording | None
    why: str = ""


def entries_below(folder: Path) -> list[Entry]:
    """Every recording below a folder by name, at most three folders deep; links and hidden folders are left out."""
    return [entry for path in _candidates(folder) for entry in _entry(folder, path)]


def _candidates(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        path = Path(place)
        is_one = MANIFEST in files
        if is_one:
            yield path
        deeper = not is_one and len(path.relative_to(folder).parts) < _DEEPEST
        below[:] = sorted(name for name in below if deeper and not name.startswith("."))


def _entry(folder: Path, path: Path) -> Iterator[Entry]:
    """What is there; nothing where the manifest is that of something else."""
    name = str(path.relative_to(folder))
    try:
        yield Entry(name, open_recording(path))
    except NotARecordingError:
        return
    except RecordingError as error:
        yield Entry(name, None, f"{error.what}; {error.advice}" if error.advice else error.what)
