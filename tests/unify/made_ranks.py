"""Recordings of several ranks whose calls are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import lockstep
from lockstep.core.manifest import Options
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import Role
from lockstep.store.directory import RunDirectory
from lockstep.store.reader import Recording
from lockstep.store.written_calls import CallsOfRank, WholeRankOnDisk, closed_manifest


def made(
    path: Path, *ranks: list[ReadCall], told: Mapping[int, Mapping[str, Any]] | None = None
) -> Recording:
    """A recording of so many ranks, whose calls are told; `told` is what manifests say otherwise, by rank."""
    directory = RunDirectory.create(path, ["made"], Options(save="tensors"), force=False)
    for rank, calls in enumerate(ranks):
        manifest = closed_manifest(rank, len(ranks), ["made"])
        manifest = replace(manifest, **(told or {}).get(rank, {}))
        maker, disk = CallsOfRank(rank), WholeRankOnDisk(directory.path / manifest.rank)
        for one in calls:
            disk.add(maker.made_of(replace(one, rank=rank)))
        disk.finish(manifest)
    directory.finish(exit_code=0)
    return lockstep.open(path)


def call(op: str, *results: np.ndarray, step: int = 0) -> ReadCall:
    """A call that returns so many tensors."""
    tensors = [
        ReadTensor(Role.OUTPUT, f"result.{number}", one) for number, one in enumerate(results)
    ]
    return ReadCall(step, "fc", f"torch.{op}", tensors)
