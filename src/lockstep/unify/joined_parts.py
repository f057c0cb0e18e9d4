"""Put the parts of one tensor together: one after the other, dealt from a zigzag, or added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.dims import Dims, How, Mesh, Split
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.optimizer_classes import QUADRATIC_STATES

Array = npt.NDArray[Any]

_ROUNDINGS = 4
"""Copies of one tensor are equal as far as so many roundings of its largest element part them: what the order of a sum
makes of them, where ranks do not add in the same one."""


def copies_apart(name: str, dtype: str) -> float:
    """How far apart equal copies of a tensor may be, of its largest element, by its recorded name.

    An optimizer's state that is made of squares is twice as far apart as the gradient that is squared.
    """
    squared = name.rpartition("|")[2] in QUADRATIC_STATES
    return (2 if squared else 1) * _ROUNDINGS * unit_roundoff(dtype)


class UnlikeDimsError(ValueError):
    """Dims that do not fit a tensor's parts; the message says where."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A tensor of all ranks.

    array: The whole of it; where copies differ by more than rounding, all of them along a new first axis.
    copies: How many copies differ so; 1 for none.
    rounding: How far copies are apart that count as equal, of the largest element; 0 where they are bit by bit.
    """

    array: Array
    copies: int = 1
    rounding: float = 0.0


def joined(
    parts: Mapping[int, Array], dims: Dims, mesh: Mesh, dtype: str, name: str = ""
) -> Joined:
    """The tensor that ranks hold parts of.

    parts: By rank; of those that hold copies some may be missing.
    dtype: As the framework names it; what is summed is rounded to it.
    name: As it is recorded.

    Raises UnlikeDimsError if the dims do not fit the parts, or a part is missing.
    """
    _check_axes(parts, dims, mesh)
    order = [axis for axis in mesh.sizes if axis in dims.over]
    wholes: dict[tuple[int, ...], dict[tuple[int, ...], Array]] = defaultdict(dict)
    for rank, part in sorted(parts.items()):
        place = mesh.place(rank)
        copy = tuple(number for axis, number in place.items() if axis not in dims.over)
        wholes[copy][tuple(place[axis] for axis in order)] = part
    found = [_whole(one, dims, order, mesh, dtype) for one in wholes.values()]
    return _one_of(found, dims, copies_apart(name, dtype))


def _check_axes(parts: Mapping[int, Array], dims: Dims, mesh: Mesh) -> None:
    if unknown := sorted(dims.over - set(mesh.sizes)):
        raise UnlikeDimsError(
            f"dims {dims.text!r} name {unknown[0]}, which the mesh of ranks has not"
        )
    for rank, part in parts.items():
        if dims.axes is not None and part.ndim != len(dims.axes):
            shape = tuple(part.shape)
            raise UnlikeDimsError(
                f"dims {dims.text!r} have {len(dims.axes)} axes, and rank{rank}'s part {shape} has {part.ndim}"
            )


def _whole(
    parts: dict[tuple[int, ...], Array], dims: Dims, order: Sequence[str], mesh: Mesh, dtype: str
) -> Array:
    """Parts by their place along the axes of the mesh that the dims name, in this order, as one."""
    left = list(order)
    for axis, split in dims.splits:
        at = left.index(split.over)
        rows: dict[tuple[int, ...], dict[int, Array]] = defaultdict(dict)
        for place, part in parts.items():
            rows[place[:at] + place[at + 1 :]][place[at]] = part
        parts = {place: _along(row, axis, split, dims, mesh, dtype) for place, row in rows.items()}
        left.pop(at)
    (whole,) = parts.values()
    return whole


def _along(
    row: dict[int, Array], axis: int, split: Split, dims: Dims, mesh: Mesh, dtype: str
) -> Array:
    size = mesh.sizes[split.over]
    if absent := sorted(set(range(size)) - set(row)):
        raise UnlikeDimsError(f"the part at {split.over}={absent[0]} is not in the recording")
    parts = [row[number] for number in range(size)]
    _check_extents(parts, axis, split, dims)
    if split.how is How.PARTIAL:
        return _sum(parts, split, dims, dtype)
    if split.how is How.ZIGZAG:
        parts = _dealt_back(parts, axis, dims)
    return np.concatenate(parts, axis)


def _check_extents(parts: Sequence[Array], axis: int, split: Split, dims: Dims) -> None:
    assert dims.axes is not None
    free = axis if split.how is How.BLOCKS else -1
    for number, one in enumerate(dims.axes):
        extents = [part.shape[number] for part in parts]
        if number != free and len(set(extents)) > 1:
            raise UnlikeDimsError(
                f"along {one.name} of {dims.text!r} parts over {split.over} have {extents} elements"
            )


def _dealt_back(parts: Sequence[Array], axis: int, dims: Dims) -> list[Array]:
    """The front halves in the order of the ranks, and the back halves in the opposite one."""
    assert dims.axes is not None
    extent = parts[0].shape[axis]
    if extent % 2:
        raise UnlikeDimsError(
            f"along {dims.axes[axis].name} of {dims.text!r} a part has {extent} elements, no two chunks"
        )
    halves = [np.split(part, 2, axis) for part in parts]
    return [front for front, _ in halves] + [back for _, back in reversed(halves)]


def _sum(parts: Sequence[Array], split: Split, dims: Dims, dtype: str) -> Array:
    first = parts[0]
    if (
        all(np.array_equal(first, part, equal_nan=first.dtype.kind in "fc") for part in parts[1:])
        and first.any()
    ):
        raise UnlikeDimsError(
            f"dims {dims.text!r} say summands over {split.over}, and all ranks there hold the same"
        )
    wide = (
        np.complex128
        if first.dtype.kind == "c"
        else np.float64
        if first.dtype.kind == "f"
        else first.dtype
    )
    total = np.sum([part.astype(wide) for part in parts], axis=0)
    return rounded(np.asarray(total).astype(first.dtype), dtype)


def rounded(array: Array, dtype: str) -> Array:
    """Numbers of float32 as bfloat16 has them, still in float32; others as they are."""
    if dtype != "bfloat16":
        return array
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    special = ~np.isfinite(array)
    return np.where(special, array, even.astype(np.uint32).view(np.float32)).astype(np.float32)


def _one_of(copies: Sequence[Array], dims: Dims, allowed: float) -> Joined:
    """The first of several copies that are equal, or all of them."""
    first = copies[0]
    shapes = {one.shape for one in copies}
    if len(shapes) > 1:
        raise UnlikeDimsError(
            f"copies on several ranks have the shapes {sorted(shapes)}{_along_which(shapes, dims)}"
        )
    apart = max((_apart(first, one) for one in copies[1:]), default=0.0)
    if apart <= allowed:
        return Joined(first, rounding=apart)
    return Joined(np.stack(copies), copies=len(copies))


def _along_which(shapes: set[tuple[int, ...]], dims: Dims) -> str:
    """The axes along which shapes differ, in words; "" where their number does."""
    if dims.axes is None or {len(shape) for shape in shapes} != {len(dims.axes)}:
        return ""
    unlike = [
        axis.name
        for number, axis in enumerate(dims.axes)
        if len({one[number] for one in shapes}) > 1
    ]
    return f", which differ along {' and '.join(unlike)} of {dims.text!r}: say over which axis of the mesh it is spread"


def _apart(left: Array, right: Array) -> float:
    """The largest difference of two copies, of their largest element; infinite where one alone is not finite."""
    if np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"):
        return 0.0
    if left.dtype.kind not in "fc":
        return np.inf
    finite = np.isfinite(left)
    if (
        not np.array_equal(left[~finite], right[~finite], equal_nan=True)
        or not np.isfinite(right[finite]).all()
    ):
        return np.inf
    wide = np.complex128 if left.dtype.kind == "c" else np.float64
    ours, theirs = left[finite].astype(wide), right[finite].astype(wide)
    return float(np.abs(ours - theirs).max() / max(np.abs(ours).max(), np.abs(theirs).max()))


__all__ = ["Joined", "UnlikeDimsError", "copies_apart", "is_floating", "joined", "rounded"]
