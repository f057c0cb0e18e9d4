"""Recordings on disk of made-up trainings, written by the writer that records; and one that is damaged."""

from __future__ import annotations

from pathlib import Path

from lockstep.core.arguments import path_of
from lockstep.core.errors import UsageError
from lockstep.core.manifest import OptimizerSetup, Options
from lockstep.store.directory import RunDirectory
from lockstep.store.written_calls import RankOnDisk, closed_manifest
from lockstep.testing.made_training import MadeTraining

_COMMAND = ["python", "train.py"]


def write_recording(path: Path | str, *ranks: MadeTraining) -> Path:
    """Write the recording that trainings would leave, one per rank; takes some hundredths of a second.

    Parameters
    ----------
    path
        A directory that is not there yet.
    ranks
        The training of each rank.

    Returns
    -------
    Path
        Where it lies.

    Raises
    ------
    UsageError
        If there is no training.
    OutputExistsError
        If something is there, or it cannot be written.

    Examples
    --------
    >>> write_recording("ref", MadeTraining(steps=2))                       # doctest: +SKIP
    >>> write_recording("cand", MadeTraining(steps=2, alter={"relu": abs})) # doctest: +SKIP
    """
    if not ranks:
        raise UsageError("a recording has a rank at least; give a training")
    save = "tensors" if ranks[0].whole else "sketch"
    options = Options(steps=f"0:{max(len(run.steps) for run in ranks)}", save=save)
    directory = RunDirectory.create(path_of("path", path), list(_COMMAND), options, force=False)
    for number, run in enumerate(ranks):
        _write_rank(directory.path / f"rank{number}", run, world_size=len(ranks))
    directory.finish(exit_code=0)
    return directory.path


def damage(recording: Path) -> Path:
    """Cut the last table of a recording's first rank in half, as a broken disk or copy does; returns the recording."""
    table = max((recording / "rank0").glob("records-*.parquet"))
    data = table.read_bytes()
    table.write_bytes(data[: len(data) // 2])
    return recording


def _write_rank(folder: Path, run: MadeTraining, *, world_size: int) -> None:
    rank = RankOnDisk(folder)
    for call in (call for step in run.steps for call in step):
        rank.add(call)
    manifest = closed_manifest(int(folder.name.removeprefix("rank")), world_size, _COMMAND[1:])
    names = list(run.parameters)
    manifest.optimizers = [
        OptimizerSetup(
            0, step, "torch.optim.SGD", [{"lr": run.settings["lr"]}], [names] if not step else []
        )
        for step in range(len(run.steps))
    ]
    manifest.trainable = dict.fromkeys(names, True)
    rank.finish(manifest)
