"""Statistics and sketches of large arrays: against NumPy, and whoever takes the shares."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import threads

from lockstep.core.sketch import plan_of, sketch_of
from lockstep.kernels.jit import available
from lockstep.kernels.numbers import numbers_of_array

pytestmark = pytest.mark.skipif(not available(), reason="Numba cannot be used here")

ROW = plan_of(300_000).row
SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45, 1e-39, -1e-310, 3e38, -3e38)
DTYPES = ("float32", "float64", "bfloat16")


def array_of(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel takes, and its elements in double precision."""
    if dtype != "bfloat16":
        return values.astype(dtype), values.astype(dtype).astype(np.float64)
    halves = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return halves, (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def drawn(count: int, seed: int, sign: str = "both") -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(count)
    return {"both": values, "positive": np.abs(values), "negative": -np.abs(values)}[sign]


@settings(max_examples=40, deadline=None)
@given(
    count=st.sampled_from([257, ROW, 4 * ROW - 1, 4 * ROW, 9 * ROW + 5, 70_000, 530_000]),
    seed=st.integers(0, 99),
    sign=st.sampled_from(["both", "positive", "negative"]),
    special=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(SPECIAL)), max_size=6),
    dtype=st.sampled_from(DTYPES),
)
def test_statistics_are_those_of_numpy(
    count: int, seed: int, sign: str, special: list[tuple[float, float]], dtype: str
) -> None:
    # given numbers of one sign or both, some rows of which hold zeros, extremes or what is not finite
    values = drawn(count, seed, sign)
    for place, value in special:
        values[int(place * (count - 1))] = value
    array, doubles = array_of(values, dtype)

    # when they are measured
    found, sketch = numbers_of_array(array, with_sketch=True)

    # then every number is NumPy's
    finite = doubles[np.isfinite(doubles)]
    assert found.nan_count == np.isnan(doubles).sum()
    assert found.inf_count == np.isinf(doubles).sum()
    assert found.zero_count == (doubles == 0).sum()
    least_normal = 2.0**-1022 if dtype == "float64" else 2.0**-126
    assert found.subnormal_count == ((doubles != 0) & (np.abs(doubles) < least_normal)).sum()
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    scale = np.abs(finite).mean()
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12, abs=1e-12 * scale)
    assert found.norm == pytest.approx(np.linalg.norm(finite), rel=1e-12)
    assert sketch is not None
    expected = sketch_of(doubles)
    assert np.abs(sketch - expected).max() <= 1e-12 * np.linalg.norm(finite)


def test_zeros_keep_their_signs() -> None:
    # given nothing but zeros of both signs
    array = np.zeros(10_000, np.float32)
    array[5000] = -0.0
    # when they are measured, then the least is the negative one
    found, _ = numbers_of_array(array, with_sketch=False)
    assert math.copysign(1, found.minimum) == -1
    assert math.copysign(1, found.maximum) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_sketch", [False, True])
@pytest.mark.parametrize("count", [50 * ROW, 600_000, 8_500_000])
def test_no_number_depends_on_who_takes_the_shares(
    dtype: str, with_sketch: bool, count: int
) -> None:
    # given an array of several shares
    array, _ = array_of(drawn(count, 1), dtype)
    # when one thread takes them all, and four take them in turn
    one = numbers_of_array(array, with_sketch=with_sketch)
    four = numbers_of_array(array, with_sketch=with_sketch, run=threads)
    # then all numbers are the same, to the last bit
    assert bits_of(one) == bits_of(four)


def bits_of(found: Any) -> tuple[object, ...]:
    statistics, sketch = found
    return *map(repr, dataclasses.astuple(statistics)), None if sketch is None else sketch.tobytes()
