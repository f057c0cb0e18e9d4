"""Tensors that several ranks share: each rank has its part, and a word on how it was placed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from lockstep.capture.silence import Silence
from lockstep.core.content_notes import Note, NoteKind


def local_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """This rank's part of a distributed tensor; None where a tensor is none."""
    kind = type(tensor)
    # Not imported here: who has a distributed tensor has loaded it, and all others would wait for it.
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return None
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        local: torch.Tensor = tensor._local_tensor
        return local_part(local) if type(local) is not torch.Tensor else local
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is not None and kind is collectives.AsyncCollectiveTensor:
        with Silence():
            arrived: torch.Tensor = tensor.trigger_wait()  # type: ignore[attr-defined]
        return arrived
    return None


def placement_of(tensor: torch.Tensor) -> str:
    """How a distributed tensor is placed, in words; "" for one that is in no mesh.

    Examples
    --------
    "part of (50, 32): Shard(dim=0) on mesh (dp=2)"
    """
    mesh: Any = getattr(tensor, "device_mesh", None)
    placements: Sequence[Any] = getattr(tensor, "placements", ())
    if mesh is None:
        return ""
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    sizes = (
        f"{name}={size}" if name else str(size)
        for name, size in zip(names, mesh.shape, strict=True)
    )
    placed = ", ".join(map(repr, placements))
    shape = str(tuple(tensor.shape))[1:-1]
    return str(Note(NoteKind.PART, shape, placed, ", ".join(sizes)))


def placed_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two gradients can be added without any rank asking another."""
    if type(one) is torch.Tensor and type(other) is torch.Tensor:
        return True
    placed = [
        (getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None))
        for tensor in (one, other)
    ]
    return bool(placed[0] == placed[1])
