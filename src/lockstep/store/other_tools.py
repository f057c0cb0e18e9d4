"""Opening what another tool wrote: a plug-in reads its calls, and a recording of them is made aside."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from lockstep.core.errors import CorruptError, LockstepError
from lockstep.core.manifest import NotSeen, Options
from lockstep.hookspecs import Reader
from lockstep.plugins import readers
from lockstep.store.directory import RunDirectory
from lockstep.store.written_calls import CallsOfRank, RankOnDisk, closed_manifest

LEFT_OUT = "what the other tool left out"
"""What is not seen in such a recording: no more can be said of it than that."""

_KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""What was made, until the process ends: records read their tensors from there."""


def recording_of(path: Path) -> Path | None:
    """The directory of a recording of what another tool wrote there; None where no plug-in knows it.

    Raises
    ------
    CorruptError
        If a plug-in that knows it cannot read it.
    """
    for reader in readers() if path.exists() else ():
        try:
            if reader.recognises(path):
                return _made_by(reader, path)
        except LockstepError:
            raise
        except Exception as error:  # somebody else's code, and somebody else's file
            raise CorruptError(
                path,
                f"the reader {reader.name} cannot read it ({type(error).__name__}: {error})",
                advice="give it another file, or tell the reader's maker",
            ) from error
    return None


def _made_by(reader: Reader, path: Path) -> Path:
    aside = tempfile.TemporaryDirectory(prefix="lockstep-read-")
    _KEPT.append(aside)
    command = [f"(read from {path} by {reader.name})"]
    options = Options(steps=":", save="tensors")
    directory = RunDirectory.create(Path(aside.name) / path.name, command, options, force=False)
    ranks: dict[int, tuple[CallsOfRank, RankOnDisk]] = {}
    for call in reader.read(path):
        if call.rank not in ranks:
            folder = directory.path / f"rank{call.rank}"
            ranks[call.rank] = CallsOfRank(call.rank), RankOnDisk(folder)
        calls, disk = ranks[call.rank]
        disk.add(calls.made_of(call))
    for rank, (_, disk) in ranks.items():
        disk.finish(replace(closed_manifest(rank, len(ranks), command), python=""))
    left_out = NotSeen(LEFT_OUT, f"it was written by another tool, and read by {reader.name}")
    directory.manifest.not_seen.append(left_out)
    directory.finish(exit_code=None)
    return directory.path
