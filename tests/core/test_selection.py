"""What to record: steps, ranks and patterns, as a user writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import UsageError
from lockstep.core.selection import SiteFilter, StepSelection, parse_ranks


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("0", {0}),
        ("3", {3}),
        ("0:3", {0, 1, 2}),
        (":2", {0, 1}),
        ("5:", {5, 6, 7, 8, 9}),
        (":", set(range(10))),
        ("0::4", {0, 4, 8}),
        ("1:8:3", {1, 4, 7}),
        ("1,4", {1, 4}),
        (" 1 , 4:6 ", {1, 4, 5}),
    ],
)
def test_steps_are_numbers_and_half_open_ranges(text: str, chosen: set[int]) -> None:
    selection = StepSelection.parse(text)

    assert {step for step in range(10) if step in selection} == chosen
    assert selection.numbers_in(range(10)) == tuple(sorted(chosen))


@pytest.mark.parametrize(
    "text", ["", "a", "1,", "1;2", "-1", "3:1", "2:2", "1:2:0", "1:9:2:3", "0x1"]
)
def test_what_is_no_selection_of_steps_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="steps"):
        StepSelection.parse(text)


@pytest.mark.parametrize(
    ("text", "last"), [("0", 0), ("0:3", 2), ("1,4", 4), ("4,1", 4), ("2:4,7", 7)]
)
def test_nothing_is_left_to_record_after_the_last_step(text: str, last: int) -> None:
    selection = StepSelection.parse(text)

    assert selection.any_from(last)
    assert not selection.any_from(last + 1)


def test_an_open_range_never_ends() -> None:
    assert StepSelection.parse("5:").any_from(10**9)


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(0, 40))
def test_a_list_of_steps_holds_just_them(steps: list[int], step: int) -> None:
    selection = StepSelection.parse(",".join(map(str, steps)))

    assert (step in selection) == (step in steps)
    assert selection.any_from(step) == any(other >= step for other in steps)


def test_ranks_are_a_list_of_numbers() -> None:
    assert parse_ranks("") is None
    assert parse_ranks("0") == {0}
    assert parse_ranks("0, 2") == {0, 2}


@pytest.mark.parametrize("text", ["a", "0,", "0:2", ","])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ranks"):
        parse_ranks(text)


LINEAR = "torch.nn.functional.linear"


@pytest.mark.parametrize(
    ("only", "skip", "wanted"),
    [
        ((), (), True),
        (("h.0",), (), True),
        (("h.0.mlp",), (), True),
        (("h.*",), (), True),
        (("h.1",), (), False),
        (("linear",), (), True),
        ((LINEAR,), (), True),
        (("gelu", "linear"), (), True),
        (("gelu",), (), False),
        ((), ("linear",), False),
        ((), ("h.0",), False),
        ((), ("gelu",), True),
        (("h.0",), ("linear",), False),
    ],
)
def test_patterns_choose_sites_by_module_and_operator(
    only: tuple[str, ...], skip: tuple[str, ...], wanted: bool
) -> None:
    assert SiteFilter(only, skip).wants("h.0.mlp", LINEAR) == wanted


def test_a_pattern_is_no_prefix_of_a_name() -> None:
    assert not SiteFilter(only=("h.1",)).wants("h.10", LINEAR)
    assert not SiteFilter(only=("lin",)).wants("h.0", LINEAR)


def test_a_pattern_that_matched_nothing_is_named_with_the_nearest_names() -> None:
    sites = SiteFilter(only=("h.0", "linaer"), skip=("gelu",))
    sites.wants("h.0.mlp", LINEAR)
    sites.wants("head", "torch.nn.functional.gelu")

    unmatched = sites.unmatched()

    assert list(unmatched) == ["linaer"]
    assert LINEAR in unmatched["linaer"]
    assert bool(sites)
    assert not SiteFilter()
