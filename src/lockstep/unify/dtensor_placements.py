"""Dims of a tensor that torch.distributed placed: `part of (50, 32): Shard(dim=0) on mesh (dp=2)`."""

from __future__ import annotations

import re

from lockstep.core.dims import Axis, Dims, How, Mesh, Split
from lockstep.core.records import Content

_SHARD = re.compile(r"Shard\(dim=(-?\d+)\)|S\((-?\d+)\)")
_WORDS = re.compile(r"\w+\([^()]*\)")


def placed_by(content: Content) -> tuple[Dims, Mesh] | None:
    """Return how ranks hold a content, by its note; None if it has none, or one that cannot be put together."""
    note = content.told
    if note.whole_shape is None:
        return None
    count = len(note.whole_shape)
    sizes = [one.rpartition("=") for one in note.fields[2].split(", ")]
    mesh = {name or f"m{number}": int(size) for number, (name, _, size) in enumerate(sizes)}
    placements = _WORDS.findall(note.fields[1])
    splits: dict[int, list[Split]] = {}
    for over, placed in zip(mesh, placements, strict=True) if len(placements) == len(mesh) else ():
        shard = _SHARD.fullmatch(placed)
        if shard is not None:
            splits.setdefault(int(shard[1] or shard[2]) % max(count, 1), []).append(Split(over))
        elif placed in ("Partial(sum)", "P(sum)") and count:
            splits.setdefault(0, []).append(Split(over, How.PARTIAL))
        elif placed not in ("Replicate()", "R()"):
            return None
    if len(placements) != len(mesh):
        return None
    axes = tuple(Axis(f"d{number}", tuple(splits.get(number, ()))) for number in range(count))
    return Dims(axes, _text(axes)), Mesh(mesh)


def _text(axes: tuple[Axis, ...]) -> str:
    words = []
    for axis in axes:
        over = ",".join(
            f"{one.over}:{one.how.value}" if one.how is How.PARTIAL else one.over
            for one in axis.splits
        )
        words.append(f"{axis.name}[{over}]" if over else axis.name)
    return " ".join(words)


__all__ = ["placed_by"]
