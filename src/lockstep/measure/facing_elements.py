"""Elements of two tensors facing each other, block by block: for whoever looks at where they differ.

Memory is that of some blocks, whatever the tensors' size; of two layouts both tensors are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Axes, Pair
from lockstep.core.records import PIECE, Array, Pieces
from lockstep.measure.sums import (
    ULP_PARTS,
    common_integers,
    difference_of,
    doubles_of,
    integer_difference,
    ordinals,
)

Doubles = npt.NDArray[np.float64]

_LEAST_EXPONENTS = {
    "float64": -1021, "float32": -125, "bfloat16": -125, "float16": -13,
    "float8_e4m3fn": -5, "float8_e4m3fnuz": -6, "float8_e5m2": -13, "float8_e5m2fnuz": -14,
}  # fmt: skip
"""Exponent of the smallest normal number `m * 2**e` with `m` in [0.5, 1), by dtype; IEEE 754-2019 and OCP OFP8 1.0."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some elements of a pair, in row-major order of the reference.

    start: Number of the first.
    reference, candidate: As they are read: bfloat16 and float8 widened to float32, integers of one dtype.
    difference: Candidate minus reference in double precision (complex for complex tensors): 0 where both are the same
        NaN or infinity, NaN where just one of them is, or they are others.
    """

    start: int
    reference: Array
    candidate: Array
    difference: Array


def can_face(pair: Pair) -> bool:
    """Whether both tensors were saved whole, and have as many elements."""
    left, right = pair.reference, pair.candidate
    if left is None or right is None:
        return False
    whole = left.content.loader is not None and right.content.loader is not None
    return whole and (left.shape == right.shape or pair.layout is not None)


def facing_blocks(pair: Pair, *, elements: int = 2 * PIECE) -> Iterator[Block]:
    """All elements of a pair that can face each other.

    pair: Two records for which `can_face` holds.
    elements: Elements of one block, a multiple of `PIECE`.

    Raises CorruptError if a tensor's file is damaged.
    """
    left = _flat(pair.contents[0].opened())
    right = _flat(_in_the_order_of_the_reference(pair))
    for start in range(0, left.size, elements):
        stop = min(start + elements, left.size)
        yield _block(start, _part(left, start, stop), _part(right, start, stop))
        for side in (left, right):
            if not isinstance(side, np.ndarray):
                side.release(start, stop)


def _flat(side: Array | Pieces) -> Array | Pieces:
    return side.reshape(-1) if isinstance(side, np.ndarray) else side


def _part(side: Array | Pieces, start: int, stop: int) -> Array:
    return side[start:stop] if isinstance(side, np.ndarray) else side.part(start, stop)


def _in_the_order_of_the_reference(pair: Pair) -> Array | Pieces:
    """The candidate's tensor, with its axes in the reference's order where that is another one."""
    axes, candidate = pair.layout, pair.both[1]
    if axes is None or axes == tuple(range(len(axes))):
        return candidate.content.opened()
    extents = [extent for extent in candidate.shape if extent != 1]
    return np.asarray(candidate.load()).reshape(extents).transpose(_inverse(axes))


def _inverse(axes: Axes) -> list[int]:
    return [axes.index(axis) for axis in range(len(axes))]


def _block(start: int, reference: Array, candidate: Array) -> Block:
    reference, candidate = common_integers(reference, candidate)
    with np.errstate(all="ignore"):
        left, right = doubles_of(reference, 0), doubles_of(candidate, 0)
        difference = difference_of(reference, candidate, left, right)
        if reference.dtype.kind in "fc" or candidate.dtype.kind in "fc":
            finite = np.isfinite(left) & np.isfinite(right)
            if not finite.all():
                same = (left == right) | (np.isnan(left) & np.isnan(right))
                difference = np.where(finite, difference, np.where(same, 0.0, np.nan))
    return Block(start, reference, candidate, difference)


def ulps_apart(block: Block, dtype: str) -> Doubles | None:
    """Numbers of a dtype between the two, per element; NaN where either is not finite.

    Counted as `max_ulp` is, see `lockstep.measure.metrics`. None for dtypes without such a count, and complex ones.
    """
    if dtype not in ULP_PARTS or "c" in (block.reference.dtype.kind, block.candidate.dtype.kind):
        return None
    with np.errstate(all="ignore"):
        left, right = (ordinals(side, dtype) for side in (block.reference, block.candidate))
        found = np.abs(integer_difference(left, right))
    finite = np.isfinite(block.reference) & np.isfinite(block.candidate)
    return np.where(finite, found, np.nan)


def spacing(values: Doubles, dtype: str) -> Doubles:
    """Unit in the last place of numbers of a dtype at these values; that of subnormal numbers near zero.

    `2 u 2**floor(log2 |x|)`, u the unit roundoff (Goldberg 1991, section 1.2).

    >>> spacing(np.array([1.0, 2.0]), "float32").tolist() == [2.0**-23, 2.0**-22]
    True
    """
    least = _LEAST_EXPONENTS.get(dtype, -1021)
    exponents = np.where(values == 0, least, np.maximum(np.frexp(values)[1], least))
    return np.ldexp(unit_roundoff(dtype), exponents)
