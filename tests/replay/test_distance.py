"""Sizes and distances of tensors: the compiled sums say what torch's operators say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.replay.error_bounds import distance
from lockstep.replay.error_bounds.distance import Size, error_of, populations, size_of

NUMBERS = st.one_of(
    st.floats(-1e3, 1e3),
    st.floats(),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-300, -3e38, 1e200]),
)
TWO = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40).map(
    lambda pairs: torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2).unbind(1)
)


def by_torch(function: Callable[..., Any], *arguments: Any) -> Any:
    with patch.object(distance, "available", lambda: False):
        return function(*arguments)


def assert_same_size(found: Size, expected: Size) -> None:
    assert found.norm == pytest.approx(expected.norm, rel=1e-12, nan_ok=True)
    assert found.spread == pytest.approx(expected.spread, rel=1e-12, nan_ok=True)


@settings(max_examples=120, deadline=None)
@given(TWO)
@example(torch.tensor([[1e200, -1e200], [1.0, 2.0]], dtype=torch.float64).unbind(1))
@example(torch.tensor([[math.inf, math.inf], [1.0, 2.0]], dtype=torch.float64).unbind(1))
@example(torch.tensor([[math.nan, math.nan], [1.0, 1.0]], dtype=torch.float64).unbind(1))
def test_sizes_and_errors_are_those_of_torchs_operators(
    two: tuple[torch.Tensor, torch.Tensor],
) -> None:
    strided = tuple(two)
    for one, other in (strided, tuple(side.contiguous() for side in two)):
        assert_same_size(size_of(one), by_torch(size_of, one))
        assert_same_size(error_of(one, other), by_torch(error_of, one, other))
        found, expected = populations(one), by_torch(populations, one)
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine is None) == (theirs is None)
            assert mine is None or torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_other_dtypes_are_measured_too(dtype: torch.dtype) -> None:
    values = torch.tensor([3, -4, 0], dtype=dtype)
    assert size_of(values).norm == 5
    assert error_of(values, torch.zeros_like(values)).norm == 5


def test_numbers_that_sit_at_other_places_are_infinitely_far() -> None:
    one = torch.tensor([1.0, math.nan], dtype=torch.float64)
    assert error_of(one, torch.ones(2, dtype=torch.float64)).norm == math.inf
    assert error_of(one, one.clone()).norm == 0


def test_one_sentinel_is_a_population_of_its_own() -> None:
    truth = torch.tensor([1.0, -2.0, 1e9, 0.5], dtype=torch.float64)
    ordinary, huge = populations(truth)
    assert huge is not None
    assert huge.tolist() == [False, False, True, False]
    assert ordinary is not None
    assert ordinary.tolist() == [True, True, False, True]
    assert populations(truth[[0, 1, 3]]) == [None]
