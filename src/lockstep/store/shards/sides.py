"""Two recordings of which one, or both, spread a training over several ranks, made to be compared rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.store.reader import Recording
from lockstep.store.shards.dims_file import NAME, DimsFile, read_dims
from lockstep.store.shards.global_batch import as_global_batch
from lockstep.store.shards.one_rank import as_one_rank, is_placed


def side_by_side(
    reference: Recording, candidate: Recording, dims: Sequence[Path] = ()
) -> tuple[Recording, Recording]:
    """The two, with the ranks of each put together where dims are given, or tell how and their numbers differ.

    Parameters
    ----------
    dims
        Files that say what axes mean: one for both, or one for each. They count before what a recording says itself.

    Raises
    ------
    UsageError
        If there are three files, one cannot be read, both recordings are of one rank, or no mesh is told.
    RecordingError
        If a recording cannot be read.
    """
    if len(dims) > 2:
        raise UsageError("--dims is given three times; once is for both sides, twice for each")
    sides = (reference, candidate)
    spread = [
        len(one.ranks) > 1 or any(rank.manifest.world_size > 1 for rank in one.ranks.values())
        for one in sides
    ]
    if dims and not any(spread):
        raise UsageError(
            f"--dims {dims[0]}: both recordings are of one rank, which holds every tensor whole"
        )
    given = [[read_dims(path)] for path in ((dims[0], dims[-1]) if dims else ())] or [[], []]
    own = [_own(one) for one in sides]
    if not dims and len(reference.ranks) == len(candidate.ranks):
        return sides
    if not dims and not any(own) and (whole := _data_parallel(sides)):
        return whole
    left, right = (
        as_one_rank(one, [*files, *annotated])
        if several and (files or annotated or is_placed(one))
        else one
        for one, several, files, annotated in zip(sides, spread, given, own, strict=True)
    )
    return left, right


def _data_parallel(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """One rank beside all ranks of a training whose parameters every rank has whole; None where they are not these."""
    one, many = sorted(sides, key=lambda side: len(side.ranks))
    if len(one.ranks) != 1 or any(rank.manifest.world_size > 1 for rank in one.ranks.values()):
        return None
    names = {f"rank{number}" for number in range(len(many.ranks))}
    sizes = {rank.manifest.world_size for rank in many.ranks.values()}
    if set(many.ranks) != names or sizes != {len(names)} or is_placed(many):
        return None
    made = as_global_batch(many, one)
    return (one, made) if sides[0] is one else (made, one)


def _own(recording: Recording) -> list[DimsFile]:
    """What lies beside a dump, and then what the tool that wrote it told itself."""
    folders = [recording.path, *(rank.path.parent for rank in recording.ranks.values())]
    files = dict.fromkeys(folder / NAME for folder in folders)
    return [read_dims(file) for file in files if file.is_file() and not file.is_symlink()]


__all__ = ["side_by_side"]
