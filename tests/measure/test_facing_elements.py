"""Elements face each other as the metrics have them, in blocks of any size and either layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.finding import Axes, Pair
from lockstep.core.records import PIECE, Content, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.measure.facing_elements import can_face, facing_blocks, spacing, ulps_apart
from lockstep.measure.metrics import measure_tensors

SITE = Site("net", "torch.add", 0, Phase.FORWARD)


def record(value: npt.NDArray[Any], dtype: str = "", *, kept: bool = True) -> TensorRecord:
    dtype = dtype or str(value.dtype)
    loader = (lambda: value) if kept else None
    content = Content(0, dtype, value.shape, "cpu", None, None, loader=loader)
    return TensorRecord("rank0", 0, SITE, Role.OUTPUT, 0, "", 0, 0, content)


def pair(left: npt.NDArray[Any], right: npt.NDArray[Any], layout: Axes | None = None) -> Pair:
    return Pair(record(left), record(right), layout=layout)


DTYPES = ("float32", "float64", "float16", "int64", "uint8", "bool", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_blocks_hold_what_the_metrics_are_of(dtype: str) -> None:
    # given two tensors of more than one block
    random = np.random.default_rng(0)
    left, right = ((random.standard_normal(PIECE + 77) * 9).astype(dtype) for _ in range(2))
    blocks = list(facing_blocks(pair(left, right), elements=PIECE))
    # then every element is there once, and its difference is the metrics'
    assert [one.start for one in blocks] == [0, PIECE]
    difference = np.concatenate([one.difference for one in blocks])
    measured = measure_tensors(left, right, dtype=dtype)
    assert np.abs(difference).max() == measured.max_abs
    assert difference.size == left.size
    found = [ulps_apart(one, dtype) for one in blocks]
    if math.isnan(measured.max_ulp) or dtype == "complex64":
        assert found == [None, None]
    else:
        assert max(float(one.max()) for one in found if one is not None) == measured.max_ulp


def test_what_is_not_finite_differs_unless_it_is_the_same() -> None:
    left = np.array([math.nan, math.nan, math.inf, math.inf, -math.inf, 1.0], np.float32)
    right = np.array([math.nan, 0.0, math.inf, -math.inf, 3.0, 1.0], np.float32)
    (block,) = facing_blocks(pair(left, right))
    assert np.array_equal(block.difference, [0, np.nan, 0, np.nan, np.nan, 0], equal_nan=True)
    ulps = ulps_apart(block, "float32")
    assert ulps is not None
    assert np.array_equal(ulps, [np.nan] * 5 + [0], equal_nan=True)


def test_large_integers_are_subtracted_before_they_are_rounded() -> None:
    (block,) = facing_blocks(pair(np.array([2**62]), np.array([2**62 + 1])))
    assert block.difference.tolist() == [1.0]


def test_another_layout_is_put_into_the_order_of_the_reference() -> None:
    # given a candidate that holds the axes in another order
    left = np.arange(24.0).reshape(2, 1, 3, 4)
    right = left.reshape(2, 3, 4).transpose(1, 2, 0).copy()
    met = pair(left, right, (1, 2, 0))
    # then equal elements face each other
    assert can_face(met)
    (block,) = facing_blocks(met)
    assert not block.difference.any()
    assert np.array_equal(block.reference, left.reshape(-1))


def test_what_was_not_saved_or_has_another_shape_faces_nothing() -> None:
    value = np.ones(4)
    assert can_face(pair(value, value))
    assert not can_face(Pair(record(value), record(value, kept=False)))
    assert not can_face(Pair(record(value), None))
    assert not can_face(pair(value, np.ones((2, 2))))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_have_their_elements(shape: tuple[int, ...]) -> None:
    blocks = list(facing_blocks(pair(np.ones(shape), np.zeros(shape))))
    assert sum(one.difference.size for one in blocks) == math.prod(shape)


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_the_spacing_is_numpys(value: float) -> None:
    expected = np.spacing(np.abs(np.float32(value)))
    assert spacing(np.array([value]), "float32") == expected


@given(st.floats(-6e4, 6e4, width=16))
def test_the_spacing_of_halves_is_numpys(value: float) -> None:
    assert spacing(np.array([value]), "float16") == np.spacing(np.abs(np.float16(value)))


def test_the_spacing_of_bfloat16_is_two_units_of_its_roundoff_at_one() -> None:
    assert spacing(np.array([1.0, 0.0]), "bfloat16").tolist() == [2.0**-7, 2.0**-133]
