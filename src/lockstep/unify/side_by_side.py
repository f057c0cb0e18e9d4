"""Two recordings of which one, or both, spread a training over several ranks, made to be compared rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.dims import DIMS_FILE
from lockstep.core.errors import UsageError
from lockstep.core.text import listed
from lockstep.store.reader import Recording
from lockstep.unify.model_calls import are_samplers, have_other_rows, parts_of_both, takes_parts

if TYPE_CHECKING:
    from lockstep.unify.dims_file import DimsFile


def side_by_side(
    reference: Recording, candidate: Recording, dims: Sequence[Path] = ()
) -> tuple[Recording, Recording]:
    """Return two recordings, the ranks of each put together where dims are given, or tell how and their numbers differ.

    Parameters
    ----------
    dims
        Files that say what axes mean: one for both, or one for each. They count before what a recording says itself.

    Raises
    ------
    UsageError
        If there are three files, one cannot be read, both recordings are of one rank, no mesh is told, or a rank is
        missing beside a recording of one.
    RecordingError
        If a recording cannot be read.
    """
    if len(dims) > 2:
        raise UsageError(
            "--dims is given three times; give it once for both recordings, or twice, once for each"
        )
    sides = (reference, candidate)
    spread = [len(one.ranks) > 1 or _of_a_group(one) for one in sides]
    if dims and not any(spread):
        raise UsageError(
            f"--dims {dims[0]}: both recordings are of one rank, which holds every tensor whole"
        )
    alike = len({(len(one.ranks), _world_size(one)) for one in sides}) == 1
    if not dims and (alike or not any(map(_of_a_group, sides))):
        return _of_as_many_ranks(sides)
    from lockstep.unify.by_dims import as_one_rank, is_placed
    from lockstep.unify.dims_file import read_dims

    given = [[read_dims(path)] for path in ((dims[0], dims[-1]) if dims else ())] or [[], []]
    own = [_own(one) for one in sides]
    if not dims and not any(own) and (whole := _beside_one(sides)):
        return whole
    left, right = (
        as_one_rank(one, [*files, *annotated])
        if several and (files or annotated or is_placed(one))
        else one
        for one, several, files, annotated in zip(sides, spread, given, own, strict=True)
    )
    return left, right


def _of_as_many_ranks(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording]:
    """Both, where they are one training as the same tokens or in whole batches; what that takes is rarely loaded."""
    made = None
    if are_samplers(sides):
        from lockstep.unify.sampler import as_same_tokens

        made = as_same_tokens(sides)
    if made is None and have_other_rows(sides):
        from lockstep.unify.packed_tokens import as_same_rows

        made = as_same_rows(sides)
    return made or _with_whole_batches(sides) or sides


def _with_whole_batches(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    if parts_of_both(sides) is None:
        return None
    from lockstep.unify.gradient_accumulation import as_whole_batches

    return as_whole_batches(sides)


def _of_a_group(recording: Recording) -> bool:
    """Whether its ranks say that they trained together."""
    return _world_size(recording) > 1


def _world_size(recording: Recording) -> int:
    """How many ranks the training had, by what its ranks say."""
    return max((rank.manifest.world_size for rank in recording.ranks.values()), default=0)


def _beside_one(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """One rank beside all ranks of a training, put together by what that one holds; None where they are not these.

    Another tool's dump does not tell how many ranks there were: one rank of it may be what is left of several.
    """
    from lockstep.unify.by_dims import has_axes, is_placed
    from lockstep.unify.by_one_rank import as_global_batch

    sizes = [_world_size(side) for side in sides]
    if any(side.is_of_another_tool for side in sides) or sizes[0] == sizes[1]:
        return None
    many, one = sides if sizes[0] > sizes[1] else (sides[1], sides[0])
    if (min(sizes) > 1 and any(map(is_placed, sides))) or has_axes(many):
        return None
    _check_ranks(many, max(sizes))
    if len(one.ranks) == min(sizes) == 1 and (both := _of_stages(many, one)):
        return both if sides[0] is many else (both[1], both[0])
    if whole := _with_whole_batches(sides):
        return whole
    if len(one.ranks) != 1 or min(sizes) != 1:
        raise UsageError(
            f"{sides[0].path} is of {sizes[0]} ranks and {sides[1].path} of {sizes[1]}, and nothing says how their"
            " tensors are spread; compare each with a recording of one rank, or say it with --dims"
        )
    made = as_global_batch(many, one)
    return (one, made) if sides[0] is one else (made, one)


def _of_stages(many: Recording, one: Recording) -> tuple[Recording, Recording] | None:
    """Both as of one rank with whole batches; None where ranks do not hold stages of the model."""
    from lockstep.unify.gradient_accumulation import whole_batches_of
    from lockstep.unify.pipeline import as_whole_model, stages_of

    (alone,) = one.ranks.values()
    stages = stages_of(many, alone)
    if not stages:
        return None
    made = as_whole_model(many, one, stages)
    return made, whole_batches_of(one, [alone], alone) if takes_parts(alone) else one


def _check_ranks(many: Recording, size: int) -> None:
    """Refuse ranks that do not make a whole. Raises UsageError if one is missing, or there are two processes of one."""
    second = next((name for name in many.ranks if not name.removeprefix("rank").isdigit()), None)
    if second is not None:
        raise UsageError(
            f"{many.path}: {second} is a second process of its rank, so nothing says which of them belongs to the"
            " others; record a command that trains once on each rank"
        )
    missing = [f"rank{number}" for number in range(size) if f"rank{number}" not in many.ranks]
    if missing:
        here = f"{len(many.ranks)} of the training's {size} ranks"
        raise UsageError(
            f"{many.path}: {listed(missing)} {'is' if len(missing) == 1 else 'are'} missing, so one rank cannot be"
            f" compared with {here}; copy {missing[0]} here from where it was recorded, or record all ranks again"
            " without --ranks"
        )


def _own(recording: Recording) -> list[DimsFile]:
    """What lies beside a dump, and then what the tool that wrote it told itself."""
    from lockstep.unify.dims_file import read_dims

    folders = [recording.path, *(rank.path.parent for rank in recording.ranks.values())]
    files = dict.fromkeys(folder / DIMS_FILE for folder in folders)
    return [read_dims(file) for file in files if file.is_file() and not file.is_symlink()]


__all__ = ["side_by_side"]
