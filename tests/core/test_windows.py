"""Windows are parsed, and found again among recorded steps."""

import pytest

from lockstep.core.errors import UsageError
from lockstep.core.selection import StepSelection
from lockstep.core.windows import Windows, windows_in


def test_windows_begin_at_the_first_step_of_each_range() -> None:
    windows = Windows.parse("0:2,1000:1003")

    assert StepSelection.parse(windows.steps).numbers_in(range(1100)) == (0, 1, 1000, 1001, 1002)
    assert StepSelection.parse(windows.starts).numbers_in(range(1100)) == (0, 1000)


def test_two_windows_may_touch() -> None:
    windows = Windows.parse("0:2,2:4")

    assert StepSelection.parse(windows.starts).numbers_in(range(9)) == (0, 2)


def test_every_takes_two_steps_each() -> None:
    windows = Windows.parse("every=100")

    assert StepSelection.parse(windows.steps).numbers_in(range(250)) == (0, 1, 100, 101, 200, 201)
    assert StepSelection.parse(windows.starts).numbers_in(range(250)) == (0, 100, 200)


@pytest.mark.parametrize("text", ["5:", "0::10", "0:4,2:6", "4:6,0:5", "x", ""])
def test_what_has_no_end_or_overlaps_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"windows|steps"):
        Windows.parse(text)


@pytest.mark.parametrize("text", ["every=2", "every=", "every=-5", "every=x"])
def test_every_leaves_a_step_between(text: str) -> None:
    with pytest.raises(UsageError, match="at least 3"):
        Windows.parse(text)


def test_recorded_steps_are_grouped_by_their_window() -> None:
    assert windows_in([0, 2, 40], [0, 1, 2, 3, 40, 60, 61]) == [(0, 1), (2, 3), (40,)]


def test_windows_of_kept_states_are_those_that_were_recorded() -> None:
    assert Windows.of([0, 40], [0, 1, 40, 41]) == Windows("0:2,40:42", "0,40")
