"""Find the recordings below some folders, anew on each request."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.recordings import MANIFEST, Recording, losses_of, open_recording
from lockstep.terminal import shell_line
from lockstep_ui.run_settings import Value, settings_of

MOST_RUNS = 500
"""Runs that are listed; a folder with more is told so."""

_DEPTH = 4
"""How far below a given folder a recording may lie."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recording.

    key: By which pages call it: it tells nothing of the path.
    path, name: Where it lies, and that from the folder that was given.
    stamp: Changes with its manifests.
    problem: Why it cannot be read, or "".
    made, command, state: As its manifest has them; "" where they are not known.
    steps: Recorded ones.
    trained: Steps of the whole training, None where that is not known.
    settings: What it was set up with; see `lockstep_ui.run_settings`.
    losses: Of the first rank, as step and value; of several of one step, the last.
    """

    key: str
    path: Path
    name: str
    stamp: str
    problem: str = ""
    made: str = ""
    command: str = ""
    state: str = ""
    steps: tuple[int, ...] = ()
    trained: int | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    losses: tuple[tuple[int, float], ...] = ()

    @property
    def is_growing(self) -> bool:
        """Whether it is being recorded, as far as its manifest tells."""
        return not self.problem and self.state == "recording"


class Runs:
    """Looks for recordings below folders, and opens each again only when its manifests have changed.

    folders: Where to look; a recording stands for itself.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.absolute() for folder in folders]
        self._known: dict[str, Run] = {}

    def all(self) -> list[Run]:
        """Every recording that is there now, the newest first; one that is gone is left out."""
        found: dict[str, Run] = {}
        for folder in self._folders:
            for path in _recordings_in(folder, _DEPTH):
                if len(found) < MOST_RUNS:
                    run = self._run(path, folder)
                    found[run.key] = run
        self._known = found
        return sorted(found.values(), key=lambda one: (one.made, one.name), reverse=True)

    def by_key(self, key: str) -> Run | None:
        """A run of the list; None where there is none of that key (any more)."""
        return next((one for one in self.all() if one.key == key), None)

    def _run(self, path: Path, folder: Path) -> Run:
        key = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        stamp, known = _stamp(path), self._known.get(key)
        if known is not None and known.stamp == stamp:
            return known
        name = str(path.relative_to(folder)) if path != folder else path.name
        try:
            return _of_recording(key, name, stamp, open_recording(path))
        except LockstepError as error:
            return Run(key, path, name, stamp, problem=str(error))


def _recordings_in(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a manifest, without looking into them; links are not followed."""
    if (folder / MANIFEST).is_file():
        yield folder
        return
    try:
        inside = sorted(folder.iterdir()) if depth else []
    except OSError:  # gone, or not ours to read
        return
    for one in inside:
        if not one.name.startswith(".") and one.is_dir() and not one.is_symlink():
            yield from _recordings_in(one, depth - 1)


def _stamp(path: Path) -> str:
    """What changes when a recording does: times and lengths of its manifests."""
    found = []
    for manifest in (path / MANIFEST, *sorted(path.glob(f"rank*/{MANIFEST}"))):
        try:
            known = manifest.stat()
        except OSError:
            continue
        found.append(f"{manifest.parent.name} {known.st_mtime_ns} {known.st_size}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _losses(recording: Recording, rank: str) -> Iterator[tuple[int, float]]:
    found: dict[int, float] = {}
    for series in losses_of(recording):
        if series.rank == rank:
            found.update(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    yield from sorted(found.items())


def _of_recording(key: str, name: str, stamp: str, recording: Recording) -> Run:
    ranks, manifest = list(recording.ranks.values()), recording.manifest
    first = ranks[0] if ranks else None
    return Run(
        key, recording.path, name, stamp,
        made=manifest.created, command=shell_line(manifest.command), state=manifest.state,
        steps=tuple(sorted({step for rank in ranks for step in rank.steps})),
        trained=None if first is None else first.manifest.trained,
        settings=settings_of(recording),
        losses=() if first is None else tuple(_losses(recording, first.name)),
    )  # fmt: skip
