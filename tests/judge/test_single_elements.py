"""Single elements that are off: rounding of a 16-bit result that was converted, or a fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lockstep.judge.stray_elements import stray_elements

Array = npt.NDArray[Any]
UNIT = 2.0**-24


def bfloat16(values: Array) -> Array:
    """Rounded to bfloat16, as float32: the upper half of its bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def float16(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float32)


def gradient(rounded: Any) -> Array:
    values = np.random.default_rng(0).standard_normal(9216).astype(np.float32) * 1e-3
    values[:40] *= (
        1e-3  # small results of large terms, which another order of the sum rounds otherwise
    )
    return np.asarray(rounded(values))


def counted(left: Array, right: Array) -> int:
    return stray_elements(left, right, UNIT, float(np.linalg.norm(left)))[0]


@pytest.mark.parametrize("rounded", [bfloat16, float16])
def test_a_small_element_may_round_to_its_neighbour(rounded: Any) -> None:
    # Given a gradient in 16 bits that was converted to float32
    left = gradient(rounded)
    right = left.copy()
    # When three of its small elements are the next number of that format
    right[:3] = rounded(left[:3] * np.float32(1.004))
    if rounded is float16:
        right[:3] = np.nextafter(left[:3].astype(np.float16), np.float16(1)).astype(np.float32)
    assert (right[:3] != left[:3]).any()
    # Then none of them is wrong
    assert counted(left, right) == 0


@pytest.mark.parametrize("rounded", [bfloat16, float16])
def test_an_element_further_off_is_wrong_in_sixteen_bits_too(rounded: Any) -> None:
    left = gradient(rounded)
    right = left.copy()
    right[100] = rounded(left[100:101] * np.float32(1.05))[0]
    assert counted(left, right) == 1


def test_one_number_in_full_precision_shows_a_result_in_full_precision() -> None:
    # Given the same two neighbours, where one other element has more bits than bfloat16 holds
    left = gradient(bfloat16)
    left[500] = np.float32(1e-3) * np.float32(1 + 2.0**-20)
    right = left.copy()
    right[:3] = bfloat16(left[:3] * np.float32(1.004))
    # Then they are no roundings
    assert counted(left, right) > 0
