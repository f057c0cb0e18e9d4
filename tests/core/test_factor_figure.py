"""How many times one number is another, in the one form of every screen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.text import factor_figure, times


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.0, "0"), (0.5, "0.5"), (1.0, "1"), (1.26, "1.3"), (9.96, "10"), (26.4, "26"), (885.0, "880"),
        (172_513.0, "170,000"), (999_000.0, "1e6"), (2.13e8, "2.1e8"), (0.25, "0.25"),
        (0.0004, "4e-4"), (math.inf, "inf"), (math.nan, "-"),
    ],
)  # fmt: skip
def test_a_factor_has_two_digits_and_groups_of_three(factor: float, words: str) -> None:
    assert factor_figure(factor) == words
    assert times(factor) == f"{words} times"


@given(st.floats(1e-12, 1e12, exclude_min=True))
def test_a_factor_is_read_back_within_its_two_digits(factor: float) -> None:
    assert float(factor_figure(factor).replace(",", "")) == pytest.approx(factor, rel=0.051)
