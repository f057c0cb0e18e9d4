"""Name the migrated lines at the place where two runs part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from lockstep.compare import Origin
from lockstep.recordings import Frame
from lockstep_migrate.plan import Plan
from lockstep_migrate.verify.places import Behind, MigratedFile
from lockstep_migrate.verify.trials import Place, Trial

_CHARACTERS = 60
_MOST = 6


class Behinds:
    """Finds what a migration did at places of its result.

    plan: What was migrated.
    """

    def __init__(self, plan: Plan) -> None:
        self._plans = {file.path: file for file in plan.files}
        self._files: dict[PurePosixPath, MigratedFile] = {}

    def of_origin(self, trial: Trial, origin: Origin) -> tuple[str, ...]:
        """What was migrated on the lines that led to an origin, the innermost that has something."""
        places = [place for frame in _stack(trial, origin) for place in self._places(trial, frame)]
        for place in places:
            lines = self._on(place)
            if lines:
                return lines
        for place in places:
            nearest = self._nearest(place)
            if nearest:
                return ("no line that leads there was migrated; the nearest that was:", *nearest)
        return ("none of the lines that lead there is in a migrated file",)

    def of_place(self, place: Place) -> tuple[str, ...]:
        """What was migrated on a line, or else nearest to it."""
        nearest = self._nearest(place)
        return self._on(place) or (
            (f"{place.path}:{place.line} was not migrated; nearest to it:", *nearest)
            if nearest
            else (f"{place.path}:{place.line} was not migrated",)
        )

    def _on(self, place: Place) -> tuple[str, ...]:
        file = self._file(place.path)
        if file is None:
            return ()
        if file.is_added(place.line):
            return (f"{place.path}:{place.line} is in a helper that migrating added",)
        return tuple(_words(place.path, behind) for behind in file.on(place.line)[:_MOST])

    def _nearest(self, place: Place) -> tuple[str, ...]:
        file = self._file(place.path)
        behind = file.nearest(place.line) if file is not None else None
        return () if behind is None else (_words(place.path, behind),)

    def _file(self, path: PurePosixPath) -> MigratedFile | None:
        if path not in self._files and path in self._plans:
            self._files[path] = MigratedFile(self._plans[path])
        return self._files.get(path)

    def _places(self, trial: Trial, frame: Frame) -> Iterator[Place]:
        """Where a frame may be: recordings name files from the folder or package that they were found in."""
        ground = trial.ground
        exact = ground.relative(str(ground.workplace / frame.file))
        if exact in self._plans:
            yield Place(exact, frame.line)
            return
        parts = PurePosixPath(frame.file).parts
        found = [path for path in self._plans if path.parts[-len(parts) :] == parts]
        if len(found) == 1:
            yield Place(found[0], frame.line)


def _stack(trial: Trial, origin: Origin) -> Iterable[Frame]:
    """The call stack of an origin in a recording, innermost frame first."""
    record = origin.finding.pair.candidate
    rank = trial.recorded.recording.ranks.get(origin.rank)
    calls = rank.calls(origin.step) if rank is not None and record is not None else []
    for call in calls:
        if record is not None and any(one.sequence == record.sequence for one in call.records):
            return call.stack
    file, _, line = origin.source.rpartition(":")
    return (Frame(file, int(line), ""),) if line.isdigit() else ()


def _words(path: PurePosixPath, behind: Behind) -> str:
    row = behind.row
    where = f"{path}:{behind.first_line} (line {row.line} of the original)"
    if row.outcome.is_change:
        return f"{where}: {_short(row.before)} -> {_short(row.after)}  [{row.rule}]"
    return f"{where}: {_short(row.before)} was left to a person: {row.reason}  [{row.rule}]"


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}..."
