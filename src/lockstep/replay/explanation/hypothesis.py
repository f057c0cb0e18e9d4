"""A hypothesis about a wrong result, and the one scorer that decides whether it explains a call's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from lockstep.core.finding import Explanation, Instead
from lockstep.judge.tolerances import (
    ALIKE,
    ALONE_DIGITS,
    CHANCE_DIGITS,
    CLEAR_OF_FLOOR,
    EXPLAINED_MARGIN,
    FEWEST_FITTED,
    NEAR_FLOOR,
)
from lockstep.replay.explanation.outcome import Outcome, spread_of

_MOST_TIES = 3
"""Explanations that are the same on the inputs at hand, and are all said."""


class Target(Protocol):
    """The results to explain; see `lockstep.replay.explanation.mismatch.Mismatch`."""

    @property
    def main(self) -> Outcome:
        """The result at which the two runs part."""

    @property
    def beside(self) -> Sequence[Outcome]:
        """The other results of the same call."""


def _nothing(outcome: Outcome) -> torch.Tensor | None:
    return None


def _unknown(outcome: Outcome) -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The candidate's results as a hypothesis predicts them.

    kind, words: As printed.
    values: Of the main result, in double precision.
    beside: What it says of another result of the call; None where it leaves that as it should be.
    fitted: Numbers that were taken from the results themselves.
    noise: How far a result of the recorded dtypes is off what it says, where a re-run tells.
    placed: Whether it says where the error is and not what: then elements taken over from the result prove nothing, and
        the others, which must be right, prove it.
    """

    kind: Instead
    words: str
    values: torch.Tensor
    beside: Callable[[Outcome], torch.Tensor | None] = _nothing
    noise: Callable[[Outcome], float | None] = _unknown
    fitted: int = 0
    placed: bool = False

    def floor_at(self, outcome: Outcome, values: torch.Tensor) -> float:
        """Return the remainder that a prediction may leave: noise of the right result, or its own if that is larger."""
        floor = outcome.floor_of(values)
        left = outcome.distance_to(values)
        if floor < left <= NEAR_FLOOR * floor:
            floor = max(floor, EXPLAINED_MARGIN * (self.noise(outcome) or 0.0))
        return floor

    def fits(self, outcome: Outcome, values: torch.Tensor) -> bool:
        """Whether values are the candidate's result but for noise."""
        return outcome.distance_to(values) <= self.floor_at(outcome, values)


@dataclass(frozen=True, slots=True)
class _Fit:
    """A prediction that explains every result of the call, with what it leaves of the main one."""

    prediction: Prediction
    left: float
    alone: bool


@dataclass(frozen=True, slots=True)
class Found:
    """An explanation; `alone` where the other results of the call are right though it foretells that they are not."""

    explanation: Explanation
    alone: bool


def best(target: Target, predictions: Iterable[Prediction]) -> Found | None:
    """The prediction that leaves least of those that explain all results to their noise floors; with its ties."""
    found = [fit for one in predictions if (fit := _fit(target, one)) is not None]
    if not found:
        return None
    alone = all(fit.alone for fit in found)
    found = [fit for fit in found if fit.alone is alone]
    first = min(found, key=lambda fit: fit.left)
    noise = max(ALIKE * first.left, target.main.floor / EXPLAINED_MARGIN)
    ties = [first, *(fit for fit in found if fit is not first and fit.left <= noise)]
    words = _told(ties) + (" (the other results of the call do not show it)" if alone else "")
    share = _share(target.main, first.left)
    return Found(Explanation(first.prediction.kind, words, share), alone)


def _told(ties: Sequence[_Fit]) -> str:
    words = list(dict.fromkeys(fit.prediction.words for fit in ties))
    if len(words) == 1:
        return words[0]
    first, *rest = (text.split(" ") for text in words[:_MOST_TIES])
    shared = 0  # words that all begin with are said once
    while all(shared < len(other) - 1 for other in (first, *rest)) and all(
        other[shared] == first[shared] for other in rest
    ):
        shared += 1
    told = " or ".join([" ".join(first), *(" ".join(other[shared:]) for other in rest)])
    more = f" (and {len(words) - _MOST_TIES} more)" if len(words) > _MOST_TIES else ""
    return f"{told}{more}: the same on these inputs"


def _fit(target: Target, prediction: Prediction) -> _Fit | None:
    """A prediction with what it leaves, where it explains every result of the call."""
    main = target.main
    if not prediction.fits(main, prediction.values) or _is_idle(main, prediction):
        return None
    left = main.distance_to(prediction.values)
    explained, alone = [(main, prediction.values)], False
    for outcome in target.beside:
        said = prediction.beside(outcome)
        fits = said is not None and prediction.fits(outcome, said)
        if not fits and not outcome.right:
            return None
        alone |= said is not None and not fits
        if fits and said is not None and not outcome.right:
            explained.append((outcome, said))
    return _Fit(prediction, left, alone) if _is_proven(prediction, explained, alone) else None


def _is_idle(main: Outcome, prediction: Prediction) -> bool:
    """Whether an error is too near to noise for a prediction to say anything."""
    if prediction.placed:
        return False
    return main.error < CLEAR_OF_FLOOR * prediction.floor_at(main, prediction.values)


def _is_proven(
    prediction: Prediction, explained: Sequence[tuple[Outcome, torch.Tensor]], alone: bool
) -> bool:
    """Whether the results that a prediction foretells are more than chance gives it."""
    count = sum(int(outcome.counted.sum()) for outcome, _ in explained)
    if (prediction.placed or prediction.fitted) and count < FEWEST_FITTED:
        return False
    if prediction.placed:
        return True
    digits, left = 0.0, float(prediction.fitted)
    for outcome, values in explained:
        off = spread_of(outcome.actual - outcome.truth, outcome.counted)
        off, left = max(0.0, off - left), max(0.0, left - off)
        floor = prediction.floor_at(outcome, values)
        digits += off * (math.log10(outcome.error / floor) if floor > 0 else math.inf) if off else 0
    return digits >= CHANCE_DIGITS * (ALONE_DIGITS if alone else 1.0)


def _share(main: Outcome, left: float) -> float:
    """The part of the squared error that is explained."""
    lost = not bool((main.actual.isfinite() | ~main.truth.isfinite()).all())
    # Next to an element that is not finite the rest of the error is nothing.
    share = 1.0 if lost or main.error == 0 else 1.0 - (left / main.error) ** 2
    return min(1.0, max(0.0, share))
