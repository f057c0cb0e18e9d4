"""In which dtype scores were rounded, as log-probabilities of more digits still show.

Log-softmax takes one number from all scores of a position, so the log-probabilities and that number give the scores
back. If one number puts all of them on numbers of eight bits, they were rounded to bfloat16: each would be there by
chance once in many. Numbers of bfloat16 are numbers of float16 too, and most of float16 are none of bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.recordings import unit_roundoff
from lockstep_sampling.distributions.positions import Doubles

_BITS = {"bfloat16": 8, "float16": 11}
"""Of a number, the leading one too; the coarser first, as its numbers are also the other's."""
_LARGEST, _LEAST = 6, -3
"""Powers of two between which the first score is looked for, and the others judged."""
_SCORES = 48
"""Looked at, of a position."""
_FEWEST = 16
"""Scores of a position whose places tell something: each is on the lattice by chance about once in 100."""
_ROUNDINGS = 4
"""Of float32, in log-softmax: of the largest, the sum, its logarithm, the difference."""


def lattice_of(rows: Sequence[Doubles]) -> str:
    """Return the dtype to which the scores of all rows were rounded; "" where they have more digits, or are too few."""
    told = [_spread(row) for row in rows]
    if not told or any(row.size < _FEWEST for row in told):
        return ""
    for dtype, bits in _BITS.items():
        if all(_lies_on(row, bits) for row in told):
            return dtype
    return ""


def _spread(row: Doubles) -> Doubles:
    finite = np.unique(row[np.isfinite(row)])
    places = np.linspace(0, finite.size - 1, min(_SCORES, finite.size)).astype(np.int64)
    chosen: Doubles = finite[places]
    return chosen


def _lies_on(row: Doubles, bits: int) -> bool:
    """Whether one number, added to all, leaves numbers of so many bits."""
    firsts = _numbers(bits)
    scores = firsts[:, None] + (row - row[0])[None, :]
    size = max(1.0, float(np.abs(row).max()))
    slack = 2 * _ROUNDINGS * unit_roundoff("float32") * size
    is_small = np.abs(scores) < 2.0**_LEAST  # their numbers are as close as the slack
    exponents = np.floor(np.log2(np.where(is_small, 1.0, np.abs(scores))))
    steps = np.exp2(exponents + 1 - bits)
    apart = np.abs(scores - np.rint(scores / steps) * steps)
    tells = (steps > 50 * slack) & ~is_small
    fits = (apart <= slack) | ~tells
    return bool((fits.all(1) & (tells.sum(1) >= _FEWEST)).any())


def _numbers(bits: int) -> Doubles:
    """All numbers of so many bits between the powers of two, of both signs."""
    fractions = np.arange(2 ** (bits - 1), 2**bits) / 2.0 ** (bits - 1)
    ones = np.concatenate([fractions * 2.0**power for power in range(_LEAST, _LARGEST)])
    return np.concatenate([-ones, ones])


__all__ = ["lattice_of"]
