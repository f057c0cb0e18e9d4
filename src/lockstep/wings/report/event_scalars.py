"""Which numbers of a recording and of a comparison go into event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lockstep.reading.recorded_series import losses_of, scalars_of, tensors_of
from lockstep.report.tensorboard import ScalarWriter, check_run
from lockstep.store.reader import Recording
from lockstep.wings.report.comparison_types import Pairs

FLOORS = "× noise floor"


class Scalar(NamedTuple):
    """One number of a rank at a step; the part of a name before a slash groups charts."""

    rank: str
    name: str
    step: int
    value: float


def recording_scalars(recording: Recording) -> Iterator[Scalar]:
    """Losses, learning rates, norms of all and of each parameter and gradient."""
    tensors, _ = tensors_of(recording)
    for one in (*losses_of(recording), *scalars_of(recording, tensors)):
        for step, value in zip(one.steps.tolist(), one.values.tolist(), strict=True):
            yield Scalar(one.rank, one.quantity, step, value)
    for tensor in tensors:
        name = f"norm of each {tensor.what}/{tensor.name}"
        for step, value in zip(tensor.steps.tolist(), tensor.norm.tolist(), strict=True):
            yield Scalar(tensor.rank, name, step, value)


def comparison_scalars(pairs: Pairs) -> Iterator[Scalar]:
    """How many times its noise floor the worst pair of each step is apart: of all, and of each phase."""
    known = ~np.isnan(pairs.margin)
    steps = np.unique(pairs.step)
    for rank in pairs.rank.names:
        of_rank = known & pairs.rank.is_one_of(rank)
        for phase in ("", *pairs.phase.names):
            chosen = of_rank & pairs.phase.is_one_of(phase) if phase else of_rank
            for step in steps:
                margins = pairs.margin[chosen & (pairs.step == step)]
                if len(margins):
                    name = f"{FLOORS}/{phase or 'worst of all'}"
                    yield Scalar(rank, name, int(step), float(margins.max()))


def run_folders(folder: Path, ranks: Iterable[str]) -> dict[str, Path]:
    """The folder of each rank; a rank alone has no folder of its own."""
    names = list(ranks)
    return {rank: folder / rank if len(names) > 1 else folder for rank in names}


def write_scalars(
    scalars: Iterable[Scalar], folders: dict[str, Path], *, force: bool
) -> Iterator[Path]:
    """Write each rank's numbers into its folder, and name the folders.

    Raises OutputExistsError if a folder holds event files and `force` is not given, or cannot be written to. Raises
    UsageError if tensorboard is not installed.
    """
    by_rank: dict[str, list[Scalar]] = {}
    for one in scalars:
        by_rank.setdefault(one.rank, []).append(one)
    for rank, several in by_rank.items():
        check_run(folders[rank], force=force)
        with ScalarWriter(folders[rank]) as writer:
            for one in several:
                writer.add(one.name, one.value, step=one.step)
        yield folders[rank]
