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
    spread = [len(one.ranks) > 1 or _of_a_group(one) for one in sides]
    if dims and not any(spread):
        raise UsageError(
            f"--dims {dims[0]}: both recordings are of one rank, which holds every tensor whole"
        )
    if not dims and (
        len(reference.ranks) == len(candidate.ranks) or not any(map(_of_a_group, sides))
    ):
        return sides
    given = [[read_dims(path)] for path in ((dims[0], dims[-1]) if dims else ())] or [[], []]
    own = [_own(one) for one in sides]
    if not dims and not any(own) and (whole := _data_parallel(sides)):
        return whole
    left, right = (
        as_one_rank(one, [*files, *annotated])
        if several and (files or annotated or is_placed(one))
        else one
        for one, several, files, annotated in zip(sides, spread, given, own, strict=True)
    )
    return left, right


def _of_a_group(recording: Recording) -> bool:
    """Whether its ranks say that they trained together."""
    return any(rank.manifest.world_size > 1 for rank in recording.ranks.values())


def _data_parallel(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """One rank beside all ranks of a training whose parameters every rank has whole; None where they are not these.

    Another tool's dump does not tell how many ranks there were: one rank of it may be what is left of several.
    """
    if any(side.is_of_another_tool for side in sides):
        return None
    one, many = sorted(sides, key=lambda side: len(side.ranks))
    if len(one.ranks) != 1 or _of_a_group(one):
        return None
    names = {f"rank{number}" for number in range(len(many.ranks))}
    sizes = {rank.manifest.world_size for rank in many.ranks.values()}
    if set(many.ranks) != names or sizes != {len(names)} or _is_placed_otherwise(many):
        return None
    made = as_global_batch(many, one)
    return (one, made) if sides[0] is one else (made, one)


def _is_placed_otherwise(many: Recording) -> bool:
    """Whether tensors are placed by more than FSDP2 over all ranks: then ranks may share a batch."""
    return is_placed(many) and not all(
        any(name.startswith("fully_shard ") for name in rank.manifest.wrappers)
        for rank in many.ranks.values()
    )


def _own(recording: Recording) -> list[DimsFile]:
    """What lies beside a dump, and then what the tool that wrote it told itself."""
    folders = [recording.path, *(rank.path.parent for rank in recording.ranks.values())]
    files = dict.fromkeys(folder / NAME for folder in folders)
    return [read_dims(file) for file in files if file.is_file() and not file.is_symlink()]


__all__ = ["side_by_side"]
