"""What is rounding of a served model and what is more, output by output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lockstep_serve.neighbours import neighbours
from lockstep_serve.parity.judging import Outcome, judged

X = {"x": np.ones(4, "float32")}
Y = np.linspace(1, 2, 64, dtype="float32")
NOISE = 1e-7


def said(reference: Any, served: Any, noise: float = NOISE, inputs: Any = X) -> tuple[Outcome, str]:
    reference, moved = np.asarray(reference), []
    if reference.dtype.kind == "f" and not math.isnan(noise):
        far = np.random.default_rng(1).choice([-noise, noise], (3, *reference.shape))
        moved = list((reference * (1 + far)).astype(reference.dtype))
    one = judged("y", reference, np.asarray(served), inputs, moved)
    return one.outcome, one.words


@pytest.mark.parametrize(
    ("off", "outcome"), [(0, "agree"), (1e-6, "agree"), (1e-4, "differ"), (0.5, "differ")]
)
def test_a_distance_is_held_against_floor_and_noise(off: float, outcome: str) -> None:
    assert said(Y, Y * np.float32(1 + off)) == (Outcome(outcome), "")


def test_one_element_of_a_million_is_seen_and_a_rounding_of_it_is_none() -> None:
    # Given results that are equal but for one element, which the distance of all of them hides
    reference = np.random.default_rng(0).standard_normal(1_000_000).astype("float32")
    for off, outcome in ((1e-3, Outcome.DIFFER), (1e-7, Outcome.AGREE)):
        served = reference.copy()
        served[3] += np.float32(off)
        assert said(reference, served)[0] is outcome


def test_noise_that_was_seen_allows_as_much_again() -> None:
    assert said(Y, Y * np.float32(1.0001), noise=5e-5)[0] is Outcome.AGREE


def test_half_precision_rounds_coarser() -> None:
    half = Y.astype("float16")
    assert said(half, half * np.float16(1.001))[0] is Outcome.AGREE
    assert said(half, half * np.float16(1.01))[0] is Outcome.DIFFER


def test_double_precision_rounds_finer() -> None:
    double = Y.astype("float64")
    inputs = {"x": np.ones(4)}
    assert said(double, double * (1 + 1e-10), noise=1e-16, inputs=inputs)[0] is Outcome.DIFFER
    assert said(double, double * (1 + 1e-15), noise=1e-16, inputs=inputs)[0] is Outcome.AGREE


def test_a_reference_that_is_noise_itself_is_not_judged() -> None:
    # Given dropout in the reference, then no distance is called agreement
    assert said(Y, Y, noise=0.3)[0] is Outcome.OPEN
    assert said(Y, -Y, noise=0.3)[0] is Outcome.OPEN


def test_where_nothing_could_be_moved_the_middle_is_not_judged() -> None:
    found = [said(Y, Y * np.float32(1 + off), noise=math.nan)[0] for off in (1e-6, 3e-5, 1e-2)]
    assert found == [Outcome.AGREE, Outcome.OPEN, Outcome.DIFFER]


def test_nan_is_a_difference_unless_both_have_it() -> None:
    one, other = Y.copy(), Y.copy()
    one[3] = np.nan
    assert said(Y, one) == (Outcome.DIFFER, "1 elements are finite in one alone")
    other[3] = np.nan
    assert said(one, other)[0] is Outcome.AGREE
    one[3], other[3] = np.inf, -np.inf
    assert said(one, other)[0] is Outcome.DIFFER
    assert said(one, one.copy())[0] is Outcome.AGREE


def test_whole_numbers_and_texts_that_differ_are_not_judged() -> None:
    assert said([1, 2], [1, 2])[0] is Outcome.AGREE
    assert said([1, 2], [1, 3]) == (
        Outcome.OPEN, "1 of 2 elements differ, and whether by a rounding is not known"
    )  # fmt: skip
    assert said(np.array([b"a"], object), np.array([b"b"], object))[0] is Outcome.OPEN


def test_another_shape_is_a_difference() -> None:
    assert said(Y, Y[:3]) == (
        Outcome.DIFFER, "float32[3], where the reference gives float32[64]"
    )  # fmt: skip


def test_zeros_agree_with_zeros_alone() -> None:
    zeros = np.zeros(3, "float32")
    assert said(zeros, zeros.copy())[0] is Outcome.AGREE
    assert said(zeros, zeros + np.float32(1e-9))[0] is Outcome.DIFFER


def test_small_elements_beside_large_ones_are_held_against_their_own_noise() -> None:
    # Given boxes of some hundred pixels and scores of below one, a box and a score a row
    random = np.random.default_rng(0)
    boxes = random.uniform(10, 600, (100, 4)).astype("float32")
    scores = random.uniform(0.01, 1, (100, 1)).astype("float32")
    reference = np.concatenate([boxes, scores], 1)

    def with_scores(factor: float) -> Any:
        return np.concatenate([boxes, scores * np.float32(factor)], 1)

    # When the scores are a thousandth off, which is a millionth of the distance of all
    outcome, words = said(reference, with_scores(1.001))
    # Then it is seen, and a rounding of them is none
    assert outcome is Outcome.DIFFER
    assert "off where it is about 0." in words
    assert said(reference, with_scores(1 + 1e-7))[0] is Outcome.AGREE
    # And where the scores are as noisy themselves, it is none either
    noisy = [with_scores(1 + off) for off in (1e-3, -1e-3, 5e-4)]
    assert judged("y", reference, with_scores(1.001), X, noisy).outcome is Outcome.AGREE


@given(
    values=arrays("float32", st.integers(1, 200), elements=st.floats(-(2.0**99), 2.0**99, width=32))
)
def test_what_rounding_makes_of_any_magnitudes_agrees(values: Any) -> None:
    moved = [neighbours(values, np.random.default_rng(number)) for number in range(4)]
    assert judged("y", values, moved[0], X, moved[1:]).outcome is Outcome.AGREE
