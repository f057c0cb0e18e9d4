"""What a hypothesis says, and the one scorer that decides whether it explains a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from lockstep.core.finding import Explanation, Instead
from lockstep.judge.tolerances import CHANCE_DIGITS, CLEAR_OF_FLOOR, FEWEST_FITTED


class Target(Protocol):
    """What is to be explained; see `lockstep.replay.explanation.subject.Subject`."""

    actual: torch.Tensor
    truth: torch.Tensor
    floor: float
    counted: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a hypothesis says that the candidate's result is.

    Parameters
    ----------
    kind, words
        As printed.
    values
        Double precision, of the result's shape.
    fitted
        Numbers that were taken from the result itself.
    placed
        Whether it says where the error is and not what: then elements taken over from the result prove nothing, and
        the others, which must be right, prove it.
    """

    kind: Instead
    words: str
    values: torch.Tensor
    fitted: int = 0
    placed: bool = False


Hypotheses = Callable[..., Iterator[Prediction]]


def best(target: Target, predictions: Iterable[Prediction]) -> Explanation | None:
    """The prediction with the least residual of those that explain the result to its noise floor."""
    found: tuple[float, Explanation] | None = None
    for prediction in predictions:
        residual = _residual(target, prediction)
        if residual is not None and (found is None or residual < found[0]):
            found = residual, _explanation(target, prediction, residual)
    return None if found is None else found[1]


def _residual(target: Target, prediction: Prediction) -> float | None:
    """Norm of what a prediction leaves, where it explains the rest; else None."""
    values = prediction.values
    if values.shape != target.actual.shape or not _same_infinities(target.actual, values):
        return None
    error = norm_of(target.actual - target.truth, target.counted)
    residual = norm_of(target.actual - values, target.counted)
    size = norm_of(target.truth, target.counted)
    grown = norm_of(values, target.counted) / size if size > 0 else 1.0
    floor = target.floor * max(1.0, grown)
    if residual > floor:
        return None
    count = int(target.counted.sum())
    if prediction.placed:
        return residual if count >= FEWEST_FITTED else None
    if error < CLEAR_OF_FLOOR * floor or (prediction.fitted and count < FEWEST_FITTED):
        return None
    off = spread_of(target.actual - target.truth, target.counted) - prediction.fitted
    digits = math.log10(error / floor) if floor > 0 else math.inf
    return residual if off * digits >= CHANCE_DIGITS else None


def _explanation(target: Target, prediction: Prediction, residual: float) -> Explanation:
    error = norm_of(target.actual - target.truth, target.counted)
    lost = not bool((target.actual.isfinite() | ~target.truth.isfinite()).all())
    # Next to an element that is not finite the rest of the error is nothing.
    share = 1.0 if lost or error == 0 else 1.0 - (residual / error) ** 2
    return Explanation(prediction.kind, prediction.words, min(1.0, max(0.0, share)))


def _same_infinities(actual: torch.Tensor, values: torch.Tensor) -> bool:
    same = (actual == values) | (actual.isnan() & values.isnan())
    return bool((same | (actual.isfinite() & values.isfinite())).all())


def norm_of(values: torch.Tensor, counted: torch.Tensor) -> float:
    """Euclidean norm of the elements that count."""
    found = float(torch.linalg.vector_norm(values[counted]))
    return found if math.isfinite(found) else math.inf


def spread_of(values: torch.Tensor, counted: torch.Tensor) -> float:
    """Effective number of elements that carry a tensor, `(sum e^2)^2 / sum e^4`."""
    squares = values[counted].square()
    peak = float(squares.max()) if squares.numel() else 0.0
    if peak == 0.0 or not math.isfinite(peak):
        return 0.0
    squares = squares / peak
    return float(squares.sum() ** 2 / squares.square().sum())
