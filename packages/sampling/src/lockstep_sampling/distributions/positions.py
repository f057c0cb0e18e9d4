"""Positions of sequences with the log-probabilities that both sides have there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lockstep.judging import KERNEL_ROUNDINGS
from lockstep.recordings import unit_roundoff

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

MASKED = -1e4
"""At or below it a log-probability is that of a token that cannot be drawn: masks add this much or more, and a
probability of exp(-10000) is none in any dtype."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities at one position.

    values: float64; -inf for a token that cannot be drawn.
    ids: The tokens that they are of; None for the whole vocabulary.
    """

    values: Doubles
    ids: Ids | None = None

    @property
    def excess(self) -> float | None:
        """Logarithm of the sum of all probabilities, 0 where rounding may make it 1; None where some are not known."""
        finite = self.values[np.isfinite(self.values)]
        if self.ids is not None or not finite.size:
            return None
        most = float(finite.max())
        total = most + math.log(float(np.exp(finite - most).sum()))
        allowed = 4 * unit_roundoff("bfloat16") * max(1.0, float(np.abs(finite).max()))
        return 0.0 if abs(total) <= allowed else total


@dataclass(frozen=True)
class Position:
    """One position that both sides have.

    sequence, place: Which sequence, and the place of its token there, from 0.
    reference, candidate: Log-probabilities of the same tokens, float64, shape (tokens,).
    ids: These tokens.
    is_whole: Whether they are the whole vocabulary on both sides.
    """

    sequence: str
    place: int
    reference: Doubles
    candidate: Doubles
    ids: Ids
    is_whole: bool

    @cached_property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Which tokens can be drawn on both sides."""
        return np.isfinite(self.reference) & np.isfinite(self.candidate)

    @cached_property
    def masked(self) -> npt.NDArray[np.bool_]:
        """Which tokens the candidate alone cannot draw."""
        return np.isfinite(self.reference) & ~np.isfinite(self.candidate)

    @property
    def apart(self) -> float:
        """The largest difference of a log-probability; infinite where one side alone cannot draw a token."""
        if np.array_equal(np.isfinite(self.reference), np.isfinite(self.candidate)):
            return largest(self.reference[self.kept], self.candidate[self.kept])
        return float("inf")

    @property
    def divergence(self) -> float:
        """KL(reference || candidate) in nats; of the tokens that both have where these are not all."""
        one, other = normalised(self.reference), normalised(self.candidate)
        weights = np.exp(one)
        with np.errstate(invalid="ignore"):
            terms = np.where(weights > 0, weights * (one - other), 0.0)
        return max(0.0, float(terms.sum()))

    def range_of(self, values: Doubles) -> float:
        """How far the scores are spread, which bounds what rounding them does; 1 at least."""
        finite = values[np.isfinite(values)]
        spread = float(finite.max() - finite.min()) if finite.size > 1 else 0.0
        return max(1.0, spread, float(np.abs(finite).max(initial=0.0)) if finite.size == 1 else 0.0)


OPERATORS_OF_LAYER = 14
"""Of a decoder, as counted in Llama's: 2 norms, 7 products with weights, 2 of attention, softmax, activation, the sum
with what came in."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far rounding alone may move a log-probability.

    Log-softmax moves by at most twice what its scores move, and each run rounds every score once: four unit roundoffs
    of the scores' size. Each operator of a layer rounds its result once, and its kernel is off by
    `KERNEL_ROUNDINGS` of float32; operators carry errors on as the square root of their number (Higham and Mary, SIAM
    J. Sci. Comput. 41, 2019).

    dtype: In which the scores were computed.
    operators: Of the model; 0 for the rounding of the scores alone.
    """

    dtype: str
    operators: int = 0

    def allowed(self, position: Position, predicted: Doubles | None = None) -> float:
        """Return the allowed difference at a position."""
        reference = position.reference if predicted is None else predicted
        size = max(position.range_of(one) for one in (reference, position.candidate))
        roundoff = unit_roundoff(self.dtype)
        kernel = roundoff + KERNEL_ROUNDINGS * unit_roundoff("float32")
        inside = kernel * math.sqrt(self.operators)
        return (4 * roundoff + inside) * size


def normalised(values: Doubles) -> Doubles:
    """Return log-probabilities whose probabilities add up to 1."""
    most = values.max(initial=-np.inf)
    if not np.isfinite(most):
        return values
    shifted = values - most
    result: Doubles = shifted - np.log(np.exp(shifted).sum())
    return result


def largest(one: Doubles, other: Doubles) -> float:
    """Return the largest difference of finite numbers; 0 of none."""
    return float(np.abs(one - other).max(initial=0.0))


def shared(sequence: str, place: int, one: Scores, other: Scores) -> Position | None:
    """Return the position with the tokens that both sides have scores of; None where they share none."""
    if one.ids is None and other.ids is None:
        if one.values.size != other.values.size:
            return None
        ids = np.arange(one.values.size)
        pair = normalised(one.values), normalised(other.values)
        return Position(sequence, place, *pair, ids, is_whole=True)
    ids = np.intersect1d(_ids(one), _ids(other))
    if not ids.size:
        return None
    ours, theirs = (side.values[_places(side, ids)] for side in (one, other))
    return Position(sequence, place, ours, theirs, ids, is_whole=False)


def _ids(scores: Scores) -> Ids:
    return np.arange(scores.values.size) if scores.ids is None else scores.ids


def _places(scores: Scores, ids: Ids) -> Ids:
    known = _ids(scores)
    order = np.argsort(known)
    places: Ids = order[np.searchsorted(known, ids, sorter=order)]
    return places


def by_sequence(positions: Sequence[Position]) -> Iterator[list[Position]]:
    """Yield the positions of each sequence."""
    found: dict[str, list[Position]] = {}
    for one in positions:
        found.setdefault(one.sequence, []).append(one)
    yield from found.values()


__all__ = [
    "MASKED",
    "OPERATORS_OF_LAYER",
    "Doubles",
    "Ids",
    "Position",
    "Rounding",
    "Scores",
    "by_sequence",
    "largest",
    "normalised",
    "shared",
]
