"""How two batches of one shape that differ go together: reordered, renumbered, scaled and shifted, or others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lockstep.compare import SetupDifference
from lockstep.recordings import Statistics, TensorRecord

_Array = npt.NDArray[np.generic]
Told = tuple[str, SetupDifference]
"""An aspect of a set-up, and what differs in it."""

_ALIKE = 1e-6
"""Relative distance of two sums over the same numbers in another order, in double precision and single storage."""
_MAPPED = 1e-3
"""Up to which relative distance a mean or norm is that of a tensor that was scaled and shifted."""
_MOST_ELEMENTS = 1 << 22
"""Of a batch that is read as a whole."""
_MOST_CLASSES = 4096
_MOST_ROWS = 65_536


class Samples:
    """Counts the rows of the batches that differ, by their contents, over all steps of a rank."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[Counter[bytes], Counter[bytes]]] = {}
        self._unread: set[str] = set()

    def add(self, name: str, whole: tuple[_Array, _Array] | None) -> None:
        """Add both batches of one pair."""
        if whole is None or whole[0].ndim == 0 or len(whole[0]) > _MOST_ROWS:
            self._unread.add(name)
            return
        counts = self._counts.setdefault(name, (Counter(), Counter()))
        for side, array in zip(counts, whole, strict=True):
            side.update(row.tobytes() for row in array)

    def moved(self, name: str) -> str:
        """How many of the candidate's samples the reference has in other places, in words; "" for too few to tell.

        Of single numbers, as labels are, only all of them tell: some are equal by chance.
        """
        ours, theirs = self._counts.get(name, (Counter[bytes](), Counter[bytes]()))
        total, shared = sum(theirs.values()), sum((ours & theirs).values())
        if name in self._unread or total < 2:
            return ""
        single = all(len(row) <= np.dtype(np.complex128).itemsize for row in theirs)
        if shared == total:
            return "permuted: the reference's samples in another order, over the recorded steps"
        if single or 2 * shared < total:
            return ""
        return f"{shared} of {total} samples are the reference's, in other places"


def read_whole(left: TensorRecord, right: TensorRecord) -> tuple[_Array, _Array] | None:
    """All numbers of both, where they were saved and are not too many."""
    contents = left.content, right.content
    if contents[0].numel > _MOST_ELEMENTS or any(one.loader is None for one in contents):
        return None
    ours, theirs = (np.asarray(one.load()) for one in contents)
    return (ours, theirs) if ours.shape == theirs.shape else None


def told_of(
    left: TensorRecord, right: TensorRecord, whole: tuple[_Array, _Array] | None
) -> Told | None:
    """Return what one batch is of the other; None where it is none of what is known."""
    name, ours, theirs = left.name, left.content.statistics, right.content.statistics
    if left.content.numel < 2 or ours is None or theirs is None:
        return None
    mapped = _mapped(ours, theirs, left)
    if whole is None:
        if _has_the_same_numbers(ours, theirs):
            return _reordered(name)
        return None if mapped is None else _told_mapped(name, *mapped)
    if np.array_equal(np.sort(whole[0], axis=None), np.sort(whole[1], axis=None)):
        return _reordered(name)
    if renumbered := _renumbered(*whole):
        return "data-preprocessing", SetupDifference(name, "its classes", renumbered)
    if mapped is not None and _is_mapped(*whole, *mapped):
        return _told_mapped(name, *mapped)
    return None


def _reordered(name: str) -> Told:
    return "data-order", SetupDifference(name, "its numbers", "permuted: the same in another order")


def _renumbered(ours: _Array, theirs: _Array) -> str:
    """Which class has which number now, where each has another one all over; "" where that is not so."""
    if ours.dtype.kind not in "iub" or ours.dtype.kind != theirs.dtype.kind:
        return ""
    pairs = {*zip(ours.ravel()[:_MOST_ELEMENTS].tolist(), theirs.ravel().tolist(), strict=True)}
    lefts, rights = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    if not len(pairs) == len(lefts) == len(rights) <= _MOST_CLASSES or len(pairs) == ours.size:
        return ""  # where no class comes twice, anything is such a numbering
    steps = {right - left for left, right in pairs}
    if len(steps) == 1:
        return f"the reference's and {steps.pop():+d}"
    shown = [f"{left} is {right}" for left, right in sorted(pairs) if left != right]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    permuted = "permuted" if lefts == rights else "numbered otherwise"
    return f"{permuted}: {', '.join(shown[:3])}{more}"


def _has_the_same_numbers(left: Statistics, right: Statistics) -> bool:
    exact = ("minimum", "maximum", "zero_count", "nan_count", "inf_count")
    scale = max(abs(left.minimum), abs(left.maximum), 1e-300)
    return (
        all(getattr(left, one) == getattr(right, one) for one in exact)
        and abs(left.mean - right.mean) <= _ALIKE * scale
        and math.isclose(left.norm, right.norm, rel_tol=_ALIKE)
    )


def _told_mapped(name: str, factor: float, shift: float) -> Told:
    moved = f" and shifted by {shift:.6g}" if shift else ""
    words = f"the reference's times {factor:.6g}{moved}"
    return "data-preprocessing", SetupDifference(name, "its numbers", words)


def _mapped(left: Statistics, right: Statistics, of: TensorRecord) -> tuple[float, float] | None:
    """Factor and shift that make of the extremes, mean and norm of one those of the other, where any do.

    Integers are no measurements: of few of them these agree by chance where each is another one.
    """
    extents = left.maximum - left.minimum, right.maximum - right.minimum
    if not (min(extents) > 0 and all(map(math.isfinite, extents))):
        return None
    signs: Iterable[float] = (1.0, -1.0) if of.dtype.startswith(("float", "bfloat")) else (1.0,)
    for sign in signs:
        factor = sign * extents[1] / extents[0]
        shift = (right.minimum if sign > 0 else right.maximum) - factor * left.minimum
        shift = shift if abs(shift) > _MAPPED * extents[1] else 0.0
        if math.isclose(factor, 1.0, rel_tol=1e-6) and not shift:
            continue
        if abs(factor * left.mean + shift - right.mean) > _MAPPED * extents[1] / 10:
            continue
        if _norm_fits(left, right, factor, shift, of.content.numel):
            return factor, shift
    return None


def _norm_fits(
    left: Statistics, right: Statistics, factor: float, shift: float, count: int
) -> bool:
    """Whether the norm is that of the scaled and shifted tensor."""
    square = factor**2 * left.norm**2 + count * (2 * factor * shift * left.mean + shift**2)
    return math.isclose(math.sqrt(max(square, 0.0)), right.norm, rel_tol=_MAPPED)


def _is_mapped(ours: _Array, theirs: _Array, factor: float, shift: float) -> bool:
    """Whether each number is the other one scaled and shifted."""
    wanted = ours.astype(np.float64) * factor + shift
    extent = float(np.ptp(theirs.astype(np.float64))) or 1.0
    return bool(np.max(np.abs(wanted - theirs.astype(np.float64))) <= 2 * _MAPPED * extent)
