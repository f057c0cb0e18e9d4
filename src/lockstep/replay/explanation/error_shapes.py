"""Hypotheses that need no re-run: factor, sign, offset, and where the error stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Instead
from lockstep.replay.calls.held_results import BACKWARD
from lockstep.replay.explanation.changed_inputs import with_result
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Attempt, Mismatch
from lockstep.replay.explanation.outcome import Outcome

_MOST_SLICED = 1 << 22
"""Elements up to which every slice of every axis is looked at."""


def sign(mismatch: Mismatch) -> Iterator[Prediction]:
    """The other sign, or zero."""
    yield everywhere(mismatch, Instead.SIGN, "the result with the other sign", torch.neg)
    if not bool(mismatch.actual.any()):
        yield everywhere(mismatch, Instead.FACTOR, "zero", torch.zeros_like)


def offset(mismatch: Mismatch) -> Iterator[Prediction]:
    """A constant is added."""
    if bool(mismatch.counted.any()):
        by = float((mismatch.actual - mismatch.truth)[mismatch.counted].mean())
        words = f"the result {'plus' if by > 0 else 'minus'} {abs(by):.4g}"
        yield everywhere(mismatch, Instead.OFFSET, words, lambda right: right + by, fitted=1)


def other_positions(mismatch: Mismatch) -> Iterator[Prediction]:
    """Whole numbers off by one, from one end to the other or not; doubled, halved."""
    if unit_roundoff(mismatch.question.reference.dtype) > 0 or not mismatch.truth.numel():
        return
    most = int(torch.maximum(mismatch.truth, mismatch.actual).max()) + 1
    for by in (1, -1):
        words = f"the result {by:+d} on each index"
        yield everywhere(mismatch, Instead.INPUT, words, partial(torch.add, other=by))
        yield everywhere(mismatch, Instead.INPUT, words, partial(_around, by=by, most=most))
    yield everywhere(mismatch, Instead.INPUT, "the result doubled", partial(torch.mul, other=2))
    yield everywhere(mismatch, Instead.INPUT, "the result halved", _halved)


def _around(values: torch.Tensor, by: int, most: int) -> torch.Tensor:
    return (values + by) % most


def _halved(values: torch.Tensor) -> torch.Tensor:
    return torch.div(values, 2, rounding_mode="floor")


def factors(mismatch: Mismatch) -> Iterator[Prediction]:
    """The result times a constant: the one of least squares."""
    right, found = mismatch.truth[mismatch.counted], mismatch.actual[mismatch.counted]
    size = float(right @ right)
    if size > 0:
        factor = float(right @ found) / size
        words = f"the result times {factor:.5g}"
        yield everywhere(mismatch, Instead.FACTOR, words, lambda true: true * factor, fitted=1)


def everywhere(
    mismatch: Mismatch,
    kind: Instead,
    words: str,
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    fitted: int = 0,
) -> Prediction:
    """Return the prediction of a changed right result for it, and for each other wrong result of the call.

    A gradient is what backward makes of a function that changes its result so.
    """
    built, number = mismatch.rebuilt, mismatch.question.reference.index
    within: list[Attempt | None] = []

    def beside(outcome: Outcome) -> torch.Tensor | None:
        if outcome.right:
            return None
        if outcome.record.role not in BACKWARD or mismatch.backward or built is None:
            return change(outcome.truth)
        if not within:
            within.append(mismatch.attempt(rebuilt=with_result(built, number, change)))
        return None if within[0] is None else within[0].beside(outcome)

    return Prediction(kind, words, change(mismatch.truth), beside, fitted=fitted)


def places(mismatch: Mismatch) -> Iterator[Prediction]:
    """All is right but one element, some that are not finite, or part of an axis."""
    truth, actual = mismatch.truth, mismatch.actual
    off = _off(mismatch)
    count = int(off.sum())
    if count == 0:
        return
    values = torch.where(off, actual, truth)
    lost = off & ~(actual.isfinite() & truth.isfinite())
    if bool(lost.any()):
        if bool((lost == off).all()):
            words = _not_finite(actual, truth, lost)
            yield Prediction(Instead.NOT_FINITE, words, values, placed=True)
        return
    if count == 1 and actual.numel() > 1:
        index = tuple(int(one) for one in off.nonzero()[0])
        largest = torch.finfo(torch.float32).max
        words = f"element {_place(index)} is {float(actual[index]):.6g} instead of {float(truth[index]):.6g}"
        kind = Instead.NOT_FINITE if abs(float(actual[index])) >= largest else Instead.ELEMENT
        yield Prediction(kind, words, values, placed=True)
    elif actual.numel() <= _MOST_SLICED:
        yield from _slices(mismatch, off, values)


def _off(mismatch: Mismatch) -> torch.Tensor:
    """Elements that are further off than all noise together may be."""
    truth, actual = mismatch.truth, mismatch.actual
    same = (actual == truth) | (actual.isnan() & truth.isnan())
    lost = ~same & ~(actual.isfinite() & truth.isfinite())
    far = (actual - truth).abs() > mismatch.main.floor
    return lost | (far & ~same)


def _not_finite(actual: torch.Tensor, truth: torch.Tensor, lost: torch.Tensor) -> str:
    count = int(lost.sum())
    index = tuple(int(one) for one in lost.nonzero()[0])
    found, right = float(actual[index]), float(truth[index])
    first = f"element {_place(index)} is {found:.6g} instead of {right:.6g}"
    if actual[lost].isfinite().all():
        size = float(actual[lost].abs().min())
        if any(
            size == torch.finfo(one).max for one in (torch.float32, torch.float16, torch.bfloat16)
        ):
            first = f"infinity saturated to the largest finite number: {first}"
    return first if count == 1 else f"{count} of {lost.numel()} elements are not finite: {first}"


def _slices(mismatch: Mismatch, off: torch.Tensor, values: torch.Tensor) -> Iterator[Prediction]:
    """One index of an axis, a run of them or every so many, with most of its elements off."""
    for axis, extent in enumerate(off.shape):
        if extent < 2:
            continue
        rows = off.movedim(axis, 0).reshape(extent, -1)
        hit = rows.any(dim=1).nonzero().reshape(-1).tolist()
        part = _part(hit, extent)
        if part is None or float(rows[hit].double().mean()) < 0.5:
            continue
        words = f"right but for {part} of axis {axis}"
        if not bool(mismatch.actual[off].any()):
            words += ", which is zero"
        yield Prediction(Instead.SLICE, words, values, placed=True)


def _part(hit: list[int], extent: int) -> str | None:
    if len(hit) == 1:
        return f"index {hit[0]}"
    if hit == list(range(extent // 2, extent)) and extent > 2:
        return "the second half"
    if hit == list(range(extent // 2)) and extent > 2:
        return "the first half"
    steps = {after - before for before, after in pairwise(hit)}
    if len(hit) > 2 and len(steps) == 1 and (step := steps.pop()) > 1:
        whole = hit[0] < step and hit[-1] + step >= extent
        return f"every {step}th index from {hit[0]} on" if whole else None
    together = hit[-1] - hit[0] + 1 == len(hit) < extent
    return f"{hit[0]}:{hit[-1] + 1}" if together else None


def _place(index: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(one) for one in index) + "]"
