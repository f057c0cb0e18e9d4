"""The compiled sums: logarithms and places among a dtype's numbers, each against a plain formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.kernels.fused_formulas import GRIDS
from lockstep.kernels.jit import available
from lockstep.kernels.pair_sums import COUNTS, SUMS, add_chunks

pytestmark = pytest.mark.skipif(not available(), reason="Numba cannot be used here")


def added(reference: Any, candidate: Any, grid: int = 0) -> dict[str, float]:
    sums, counts = np.zeros((1, len(SUMS))), np.zeros((1, len(COUNTS)), np.int64)
    assert add_chunks(reference, candidate, grid=grid, sums=sums, counts=counts)
    return dict(zip((*SUMS, *COUNTS), (*sums[0].tolist(), *counts[0].tolist()), strict=True))


@settings(max_examples=300, deadline=None)
@given(st.floats(2.0**-380, 2.0**380), st.floats(2.0**-380, 2.0**380))
def test_the_logarithm_is_good_to_twelve_digits(one: float, two: float) -> None:
    found = added(np.array([one]), np.array([two]))["logarithms"]
    # log(1 + change) where the ratio is near 1: the ratio itself is rounded
    change = (two - one) / one
    exact = math.log1p(change) if abs(change) < 0.25 else math.log(two) - math.log(one)
    assert found == pytest.approx(-one * exact, rel=1e-11)


def test_the_logarithm_is_good_around_one_and_at_the_ends_of_its_interval() -> None:
    one = np.ones(1)
    for ratio in (1 + 2.0**-52, 1 - 2.0**-53, math.sqrt(0.5), math.sqrt(2), 2.0, 0.5, 1.999999):
        found = added(one, np.array([ratio]))["logarithms"]
        assert found == pytest.approx(-math.log1p(ratio - 1), rel=1e-11)


def float16_place(number: float) -> int:
    with np.errstate(over="ignore"):
        bits = int(np.float32(number).astype(np.float16).view(np.int16))
    return -(bits & 0x7FFF) if bits < 0 else bits


def bfloat16_place(number: float) -> int:
    bits = int(np.float32(number).view(np.uint32))
    size = bits & 0x7FFFFFFF
    size = (size + 0x7FFF + ((size >> 16) & 1)) >> 16
    return -size if bits >> 31 else size


def float32_place(number: float) -> int:
    bits = int(np.float32(number).view(np.int32))
    return -(bits & 0x7FFFFFFF) if bits < 0 else bits


SINGLES = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-(2.0**-13), 2.0**-13, width=32),
    st.floats(-70000, 70000, width=32),
)


@settings(max_examples=400, deadline=None)
@given(SINGLES, SINGLES)
def test_ulps_are_places_on_the_grid_of_each_dtype(one: float, two: float) -> None:
    sides = np.array([one], np.float32), np.array([two], np.float32)
    for dtype, place in (
        ("float32", float32_place),
        ("bfloat16", bfloat16_place),
        ("float16", float16_place),
    ):
        assert added(*sides, GRIDS[dtype])["max_ulp"] == abs(place(one) - place(two))
    wide = sides[0].astype(np.float64), sides[1].astype(np.float64)
    assert added(*wide, GRIDS["float32"])["max_ulp"] == added(*sides, GRIDS["float32"])["max_ulp"]


def test_doubles_beyond_what_can_be_added_are_refused_and_others_are_not() -> None:
    sums, counts = np.zeros((1, len(SUMS))), np.zeros((1, len(COUNTS)), np.int64)
    for value, taken in (
        (2.0**401, False),
        (2.0**-401, False),
        (5e-324, False),
        (0.0, True),
        (math.inf, True),
        (math.nan, True),
        (2.0**400, True),
        (2.0**-400, True),
    ):
        sides = np.array([1.0, value]), np.array([1.0, 1.0])
        assert add_chunks(*sides, grid=64, sums=sums, counts=counts) is taken
        assert add_chunks(*sides[::-1], grid=64, sums=sums, counts=counts) is taken
