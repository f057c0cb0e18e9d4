"""Layouts and conditions as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.records import Conditions, Layout
from lockstep.store.context_texts import conditions_in, conditions_text, layout_in, layout_text

_STRIDES = st.lists(st.integers(0, 2**40), min_size=1, max_size=6).map(tuple)
_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@given(_STRIDES, st.integers(0, 2**40), st.integers(-1, 99))
def test_a_layout_is_read_as_it_was_written(
    strides: tuple[int, ...], offset: int, shares: int
) -> None:
    expected = Layout(strides, offset if shares >= 0 else 0, shares)
    assert layout_in(layout_text(strides, offset, shares)) == expected


def test_a_number_that_shares_its_memory_has_a_layout() -> None:
    assert layout_in(layout_text((), 3, 0)) == Layout((), 3, 0)


@given(st.booleans(), st.lists(st.tuples(_NAMES, _NAMES), max_size=3).map(tuple))
def test_conditions_are_read_as_they_were_written(
    gradients: bool, autocast: tuple[tuple[str, str], ...]
) -> None:
    conditions = Conditions(gradients, autocast)
    assert conditions_in(conditions_text(conditions)) == conditions


def test_nothing_is_told_by_no_text() -> None:
    assert layout_in("") is None
    assert conditions_in("") is None


@pytest.mark.parametrize("text", ["x", "1,", ";", "1;2", "1;2;x", "9" * 40, "1,2;-1;0", "\u0661"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layout"):
        layout_in(text)


@pytest.mark.parametrize("text", ["maybe", "grad;", "grad;cpu", "no_grad;cpu=", "grad;=x"])
def test_what_are_no_conditions_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no conditions"):
        conditions_in(text)
