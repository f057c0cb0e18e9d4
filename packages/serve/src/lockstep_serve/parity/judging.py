"""Decide whether the answers of a served model and its reference differ by more than rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from lockstep.judging import (
    DEFAULT_CONDITION,
    FEW_ELEMENTS,
    LINEAR_REGIME,
    LOCAL_MARGIN,
    NOISE_MARGIN,
    SINGLE,
    stray_elements,
)
from lockstep_serve.parity.magnitudes import band_beyond
from lockstep_serve.servable import Array, Arrays


class Outcome(str, Enum):
    """The result for one output, and for a request that of its worst output."""

    AGREE = "agree"
    OPEN = "not judged"
    DIFFER = "differ"


@dataclass(frozen=True, slots=True)
class Judged:
    """One output of a request.

    output: Its name.
    outcome: What is said of it.
    difference, tolerance, noise: Relative Euclidean distances, `|s - r| / max(|s|, |r|)`: the served model's, what it
        may be, and what moving every number to a neighbour makes of the reference; NaN where there is none.
    words: What else there is to say.
    top1_same, top1_of: In how many rows, and of how many, the largest element is at the same place; 0 of 0 where an
        output has none.
    """

    output: str
    outcome: Outcome
    difference: float = math.nan
    tolerance: float = math.nan
    noise: float = math.nan
    words: str = ""
    top1_same: int = 0
    top1_of: int = 0

    def told(self) -> dict[str, Any]:
        """As JSON has it: what is no number is null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def judged(
    output: str, reference: Array, served: Array, inputs: Arrays, moved: Sequence[Array]
) -> Judged:
    """Judge one output.

    It may be off by the larger of two floors of the main job's: what rounds in an operator of which nothing is known
    (`DEFAULT_CONDITION` roundings of its inputs and one of its result, times `NOISE_MARGIN`), and `LOCAL_MARGIN` times
    the noise that was seen, more where elements are few. Where noise itself leaves the linear regime, nothing is said.
    Single elements that are far off where nearly all others are equal differ whatever the distance is, and so do those
    of one magnitude that are further off than their own noise (`magnitudes`).

    output: Its name.
    reference, served: What both gave.
    inputs: What both were given.
    moved: What the reference gives there with its numbers moved; nothing where none could be.
    """
    if (reference.shape, reference.dtype) != (served.shape, served.dtype):
        own = f"{reference.dtype}{list(reference.shape)}"
        words = f"{served.dtype}{list(served.shape)}, where the reference gives {own}"
        return Judged(output, Outcome.DIFFER, words=words)
    if reference.dtype.kind != "f":
        wrong = int(np.count_nonzero(reference != served))
        words = (
            f"{wrong} of {reference.size} elements differ, and whether by a rounding is not known"
        )
        return Judged(output, Outcome.OPEN, words=words) if wrong else Judged(output, Outcome.AGREE)
    odd = _not_finite_apart(reference, served)
    if odd:
        return Judged(output, Outcome.DIFFER, words=f"{odd} elements are finite in one alone")
    difference = relative_distance(reference, served)
    unit = float(np.finfo(reference.dtype).eps) / 2
    finite = np.isfinite(reference)  # where it is not, both are the same
    one, other = reference[finite], served[finite]
    stray, worst = stray_elements(one, other, unit, float(np.linalg.norm(one.astype("f8"))))
    if stray:  # one of a million may be anything, as far as the distance goes
        words = f"{stray} of {reference.size} elements off by up to {worst:.3g}, nearly all others are equal"
        return Judged(output, Outcome.DIFFER, difference, words=words)
    inner = max(
        [unit, *(np.finfo(one.dtype).eps / 2 for one in inputs.values() if one.dtype.kind == "f")]
    )
    floor = NOISE_MARGIN * (DEFAULT_CONDITION * min(float(inner), SINGLE) + unit)
    if not moved:
        # Nothing was moved: beyond the floor and below half of the digits it may be either.
        outcome = _outcome(difference, floor, beyond=math.sqrt(unit))
        words = "its reference has nothing to move" if outcome is Outcome.OPEN else ""
        return Judged(output, outcome, difference, floor, words=words)
    noise = max(relative_distance(reference, value) for value in moved)
    few = 1 + FEW_ELEMENTS / math.sqrt(max(reference.size, 1))
    tolerance = max(floor, LOCAL_MARGIN * few * noise)
    if noise > LINEAR_REGIME:
        words = "the reference itself moves as far by rounding, or draws random numbers"
        return Judged(output, Outcome.OPEN, difference, tolerance, noise, words)
    outcome = _outcome(difference, tolerance)
    if outcome is Outcome.AGREE and (band := band_beyond(reference, served, moved, floor)):
        words = (
            f"{band.difference:.3g} off where it is about {band.size:.3g}, and"
            f" {band.tolerance:.3g} is rounding there"
        )
        return Judged(output, Outcome.DIFFER, difference, tolerance, noise, words)
    return Judged(output, outcome, difference, tolerance, noise)


def judged_within(output: str, reference: Array, served: Array, tolerance: float | None) -> Judged:
    """Judge one output of a model that computes otherwise on purpose, as a quantised one does.

    It agrees where its relative Euclidean distance is within a tolerance that somebody has given; rounding is not asked
    after. Whole numbers and texts are counted and not judged: whether a step of quantisation tipped them is not known.

    output: Its name.
    reference, served: What both gave; floats may be of another width each.
    tolerance: What the distance may be; None where nobody has given one, so that nothing is judged.
    """
    floats = reference.dtype.kind == served.dtype.kind == "f"
    if reference.shape != served.shape or (reference.dtype != served.dtype and not floats):
        own = f"{reference.dtype}{list(reference.shape)}"
        words = f"{served.dtype}{list(served.shape)}, where the reference gives {own}"
        return Judged(output, Outcome.DIFFER, words=words)
    same, of = top1(reference, served)
    if not floats:
        wrong = int(np.count_nonzero(reference != served))
        words = f"{wrong} of {reference.size} elements differ, and whether by a step of quantisation is not known"
        outcome = Outcome.OPEN if wrong else Outcome.AGREE
        return Judged(output, outcome, words=words if wrong else "", top1_same=same, top1_of=of)
    odd = _not_finite_apart(reference, served)
    if odd:
        words = f"{odd} elements are finite in one alone"
        return Judged(output, Outcome.DIFFER, words=words, top1_same=same, top1_of=of)
    difference = relative_distance(reference, served)
    if tolerance is None:
        words = "the served model is quantised, its reference is not, and no tolerance was given"
        return Judged(output, Outcome.OPEN, difference, words=words, top1_same=same, top1_of=of)
    outcome = _outcome(difference, tolerance)
    return Judged(output, outcome, difference, tolerance, top1_same=same, top1_of=of)


def top1(reference: Array, served: Array) -> tuple[int, int]:
    """In how many rows of the last axis the largest element is at the same place, and of how many."""
    rows = reference.ndim > 1 and reference.shape[-1] > 1 and reference.dtype.kind == "f"
    if not rows or reference.shape != served.shape:
        return 0, 0
    same = reference.argmax(-1) == served.argmax(-1)
    return int(same.sum()), int(same.size)


def _outcome(difference: float, tolerance: float, beyond: float = 0.0) -> Outcome:
    if difference <= tolerance:
        return Outcome.AGREE
    return Outcome.DIFFER if difference > beyond else Outcome.OPEN


def relative_distance(one: Array, other: Array) -> float:
    """`|a - b| / max(|a|, |b|)` over what is finite, in double precision."""
    left, right = one.astype("f8").ravel(), other.astype("f8").ravel()
    finite = np.isfinite(left) & np.isfinite(right)
    left, right = left[finite], right[finite]
    scale = max(float(np.linalg.norm(left)), float(np.linalg.norm(right)))
    return float(np.linalg.norm(left - right)) / scale if scale else 0.0


def _not_finite_apart(reference: Array, served: Array) -> int:
    """How many elements are NaN, or an infinity, in one that are not the same in the other."""
    odd = ~np.isfinite(reference) | ~np.isfinite(served)
    return int(odd.sum()) - int(
        np.equal(reference[odd], served[odd]).sum()
        + (np.isnan(reference[odd]) & np.isnan(served[odd])).sum()
    )
