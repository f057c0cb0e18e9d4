"""What is rounding of a served model and what is more, output by output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lockstep.wings.serve.parity.judging import Outcome, judged

X = {"x": np.ones(4, "float32")}
Y = np.linspace(1, 2, 64, dtype="float32")
NOISE = 1e-7


def said(reference: Any, served: Any, noise: float = NOISE, inputs: Any = X) -> tuple[Outcome, str]:
    one = judged("y", np.asarray(reference), np.asarray(served), inputs, noise)
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
