"""The data of a page: what goes in comes out, whatever the names are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.report.page.escape import visible
from lockstep.report.page.island import decode, encode, trimmed

TEXTS = st.text(st.characters(codec=None), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_nested_data_comes_back_with_its_text_made_visible(value: Any) -> None:
    assert decode(encode(value)) == shown(value)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=64), max_size=30), st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_columns_come_back_bit_by_bit(numbers: list[float], codes: list[int]) -> None:
    # given a column of numbers, not finite ones among them, and one of codes
    columns = {"numbers": np.array(numbers), "codes": np.array(codes, dtype=np.int32)}
    # when they go through the page
    found = decode(encode(columns))
    # then nothing is lost
    np.testing.assert_array_equal(found["numbers"], columns["numbers"])
    np.testing.assert_array_equal(found["codes"], columns["codes"])


def test_numbers_that_json_does_not_know_are_kept() -> None:
    found = decode(encode([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize("key", ["$", "$$", "__proto__", "constructor"])
def test_a_recorded_name_is_never_taken_for_a_mark(key: str) -> None:
    assert decode(encode({key: "nan"})) == {key: "nan"}


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="object: cannot stand in a page's data"):
        encode([object()])


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_subnormal=False))
def test_trimmed_numbers_are_right_to_eight_digits(number: float) -> None:
    (found,) = trimmed([number])
    assert math.isnan(found) if math.isnan(number) else found == pytest.approx(number, rel=1e-8)


def shown(value: Any) -> Any:
    """The same with every text made visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return {visible(name): shown(one) for name, one in value.items()}
    return value
