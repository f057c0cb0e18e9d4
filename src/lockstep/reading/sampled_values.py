"""How the values of long tensors lie: read in parts, and counted between edges that hold nearly all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lockstep.core.records import PIECE, Array, Content

Floats = npt.NDArray[np.float64]

BINS = 48
"""Of a histogram."""

_OUTER = 1e-3
"""Share of the elements on either side that the edges of a histogram may leave outside."""

_WIDE = 4.0
"""The whole range is shown where it is at most so many times what holds nearly all elements."""


def sizes_or_values(block: Array) -> Floats:
    """Values in double precision; of complex numbers their magnitudes, as in the statistics."""
    if block.dtype.kind == "c":
        return np.abs(block.astype(np.complex128))
    return block.astype(np.float64)


def histogram_edges(*contents: Content) -> Floats | None:
    """Common edges for all tensors: equally wide, between limits that hold nearly all elements of each.

    The limits are the quantiles at 0.1 % and 99.9 %, or the whole range where that is no more than four times as wide.
    Of long tensors they are estimated from parts that are spread evenly. None where no element is finite.
    """
    sampled = [sampled_values(one) for one in contents]
    found = np.concatenate(sampled)
    if not found.size:
        return None
    quantiles = np.array([np.quantile(one, [_OUTER, 1 - _OUTER]) for one in sampled if one.size])
    low, high = float(quantiles[:, 0].min()), float(quantiles[:, 1].max())
    least, most = _whole_range(contents, found)
    if most - least <= _WIDE * (high - low):
        low, high = least, most
    if not high > low:
        low, high = least, most
    if not high > low:  # one number alone
        half = abs(low) / 2 or 0.5
        low, high = low - half, high + half
    with np.errstate(all="ignore"):
        edges = np.linspace(low, high, BINS + 1)
    return edges if np.isfinite(edges).all() and (np.diff(edges) > 0).all() else None


def _whole_range(contents: Sequence[Content], sampled: Floats) -> tuple[float, float]:
    known = [one.statistics for one in contents if one.statistics is not None]
    values = [one.minimum for one in known] + [one.maximum for one in known]
    finite = [value for value in values if math.isfinite(value)]
    return min([float(sampled.min()), *finite]), max([float(sampled.max()), *finite])


def sampled_values(content: Content) -> Floats:
    """Finite values of the whole tensor, or of evenly spread parts of a long one; complex ones by size.

    Raises CorruptError if its file is damaged.
    """
    opened, every = content.opened(), _every(content.numel)
    if isinstance(opened, np.ndarray):
        values = sizes_or_values(opened.reshape(-1)[::every])
    else:
        count = max(1, -(-opened.size // PIECE))
        starts = [PIECE * number for number in range(0, count, every)]
        values = np.concatenate(
            [
                sizes_or_values(opened.part(start, min(start + PIECE, opened.size)))
                for start in starts
            ]
        )
        opened.release(0, opened.size)
    return values[np.isfinite(values)]


def is_sampled(content: Content) -> bool:
    """Whether `sampled_values` leaves elements out."""
    return _every(content.numel) > 1


def _every(size: int) -> int:
    """Of so many elements or parts one is read."""
    return max(1, -(-size // PIECE) // _PARTS)


_PARTS = 16
"""Parts that a long tensor's limits are taken from."""

MOST_SAMPLED = 2 * _PARTS * PIECE
"""No more elements of a tensor are read by `sampled_values`."""
