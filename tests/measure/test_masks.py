"""One mask in two forms is the same; another mask is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lockstep.core.records import Content, Statistics
from lockstep.core.sketch import sketch_of
from lockstep.measure.measured_pair import is_same_mask

KEEP = np.array([[1, 1, 0], [1, 0, 0]], dtype=bool)
LOWEST = float(np.finfo(np.float32).min)


def content(
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    *,
    whole: bool,
    sketched: bool = False,
) -> Content:
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    statistics = Statistics(
        minimum=float(finite.min()) if finite.size else math.nan,
        maximum=float(finite.max()) if finite.size else math.nan,
        mean=float(finite.mean()) if finite.size else math.nan,
        norm=float(np.linalg.norm(finite / 2.0**64) * 2.0**64),
        nan_count=int(np.isnan(numbers).sum()),
        inf_count=int(np.isinf(numbers).sum()),
        zero_count=int((numbers == 0).sum()),
    )
    return Content(
        id=1,
        dtype=str(values.dtype),
        shape=values.shape,
        device="cpu",
        digest=None,
        statistics=statistics,
        sketch_loader=(lambda: sketch_of(np.where(np.isfinite(numbers), numbers, 0)))
        if sketched
        else None,
        loader=(lambda: values) if whole else None,
    )


def additive(keep: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], number: float) -> np.ndarray:
    return np.where(keep, 0.0, number).astype(np.float32)


SAME = {
    "what is kept, and -3.4e38": (KEEP, additive(KEEP, LOWEST)),
    "what is left out, and -inf": (~KEEP, additive(KEEP, -math.inf)),
    "-1e9 and -inf": (additive(KEEP, -1e9), additive(KEEP, -math.inf)),
}
OTHER = {
    "one element more": (KEEP | (np.arange(3) == 2), additive(KEEP, LOWEST)),
    "a number that leaves nothing out": (KEEP, additive(KEEP, -1.0)),
    "numbers beside 0": (KEEP, additive(KEEP, LOWEST) + np.float32(0.5)),
    "several numbers": (KEEP, additive(KEEP, LOWEST) * np.array([1, 1, 0.5], np.float32)),
    "other extents": (KEEP[:1], additive(KEEP, LOWEST)),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("case", SAME)
def test_a_mask_in_another_form_is_the_same(case: str, whole: bool) -> None:
    one, two = (content(values, whole=whole) for values in SAME[case])

    assert is_same_mask(one, two, read_tensors=True)
    assert is_same_mask(two, one, read_tensors=True)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("case", OTHER)
def test_another_mask_is_another(case: str, whole: bool) -> None:
    one, two = (content(values, whole=whole) for values in OTHER[case])

    assert not is_same_mask(one, two, read_tensors=True)
    assert not is_same_mask(two, one, read_tensors=True)


def test_whole_tensors_tell_where_elements_are_left_out() -> None:
    # given masks that leave as many elements out, but others
    moved = np.roll(KEEP, 1, axis=0)

    assert not is_same_mask(
        content(KEEP, whole=True), content(additive(moved, LOWEST), whole=True), read_tensors=True
    )


@pytest.mark.parametrize("size", [30, 40_000])
@pytest.mark.parametrize("number", [LOWEST, -1e9])
def test_sketches_tell_where_elements_are_left_out(size: int, number: float) -> None:
    # given a long mask, and one that differs in two places
    keep = np.random.default_rng(0).random(size) < 0.6
    moved = keep.copy()
    first, second = np.flatnonzero(keep)[0], np.flatnonzero(~keep)[0]
    moved[[first, second]] = moved[[second, first]]
    reference = content(additive(keep, LOWEST), whole=False, sketched=True)

    # then the same one in another form is the same, and the other one is another
    for kept, is_same in ((keep, True), (moved, False)):
        candidate = content(additive(kept, number), whole=False, sketched=True)
        assert is_same_mask(reference, candidate, read_tensors=False) is is_same
        assert is_same_mask(candidate, reference, read_tensors=False) is is_same
