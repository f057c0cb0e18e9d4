"""When the ends of steps are written: a kill costs a fifth of what was recorded, and a quarter second."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest

from lockstep.store.pace import REST_S, Pace


def written_at(ends_s: Iterator[float] | list[float]) -> list[float]:
    """When steps that end at these times are written by the pace alone."""
    now_s = [0.0]
    pace = Pace(lambda: now_s[0])
    written = []
    for end_s in ends_s:
        now_s[0] = end_s
        if pace.left_s <= 0:
            pace.rest()
            written.append(end_s)
    return written


def test_the_first_step_is_written_at_once() -> None:
    assert written_at([0.001]) == [0.001]


@pytest.mark.parametrize("step_s", [0.0001, 0.003, 0.02, 0.1])
def test_what_waits_is_a_fifth_of_what_was_recorded_and_a_quarter_second(step_s: float) -> None:
    # given steps of one length, over ten seconds
    ends_s = list(accumulate([step_s] * int(10 / step_s)))
    # when they are written by the pace
    written = written_at(ends_s)
    # then what waits never spans more than that, and the step that ends it
    for earlier, later in pairwise(written):
        assert later - earlier <= min(REST_S, 0.2 * earlier) + step_s + 1e-9
    # and the training writes some times a second, no more
    assert len(written) <= 10 / REST_S + 60


def test_long_steps_are_written_one_by_one() -> None:
    ends_s = list(accumulate([REST_S] * 20))
    assert written_at(ends_s) == ends_s
