"""How trainings went on behind their recorded steps: what makes them part, and what does not."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from lockstep.core.finding import Course
from lockstep.core.records import Content, Statistics
from lockstep.core.remarks import On
from lockstep.core.site import Role
from lockstep.core.sketch import sketch_of
from lockstep.core.states import LaterLoss, Moment, Standing, StateRecord
from lockstep.locate.ends.ends import course_of
from lockstep.locate.ends.training_sides import Side

DRAWN = np.random.default_rng(0)
LAST = DRAWN.standard_normal(500).astype(np.float32)
END = LAST + 0.1 * DRAWN.standard_normal(500).astype(np.float32)


def content(values: npt.NDArray[np.float32]) -> Content:
    sketch = sketch_of(values)
    norm = float(np.linalg.norm(values.astype(np.float64)))
    return Content(
        0,
        str(values.dtype),
        values.shape,
        "cpu",
        hashlib.sha256(values.tobytes()).hexdigest(),
        Statistics(0.0, 0.0, 0.0, norm, 0, 0, 0),
        lambda: sketch,
    )


def states(moment: Moment, **named: npt.NDArray[np.float32]) -> dict[tuple[Role, str], StateRecord]:
    return {
        (Role.PARAM, name): StateRecord(
            moment, 2, "", name, Role.PARAM, Standing.TRAINED, True, content(values)
        )
        for name, values in named.items()
    }


def side(
    end: npt.NDArray[np.float32] = END, losses: Sequence[float] = (3.0, 2.0, 1.0), steps: int = 5
) -> Side:
    """A training whose first two steps were recorded, and that has one parameter."""
    later = tuple(LaterLoss(2 + place, value, "float32") for place, value in enumerate(losses))
    last, at_end = states(Moment.LAST, weight=LAST), states(Moment.END, weight=end)
    return Side(steps, later, {}, last, at_end)


def moved(far: float) -> npt.NDArray[np.float32]:
    return (END * (1 + far)).astype(np.float32)


def test_the_same_twice_is_equal_to_its_end() -> None:
    assert course_of(side(), side(), equal=True).course is Course.EQUAL


def test_what_follows_other_recorded_steps_is_not_held_against_each_other() -> None:
    # given two runs of which the second was recorded a step further
    further = {key: replace(state, step=3) for key, state in side().last.items()}
    found = course_of(side(), replace(side(losses=(2.0, 1.0)), last=further), equal=True)
    # then nothing is said of what came behind
    assert found.course is Course.UNKNOWN


def test_losses_that_are_nan_in_both_are_equal() -> None:
    both = side(losses=(math.nan, math.nan, math.nan))
    assert course_of(both, both, equal=True).course is Course.EQUAL


@pytest.mark.parametrize(
    ("losses", "certain"),
    [
        ((3.0, 2.1, 1.0), True),
        ((3.0, math.nan, math.nan), True),
        ((3.0, float(np.float32(2.0) + np.float32(2.4e-7)), 1.0), False),
    ],
)
def test_the_first_loss_that_differs_is_where_runs_part(
    losses: Sequence[float], certain: bool
) -> None:
    found = course_of(side(), side(losses=losses), equal=True)
    assert (found.course, found.parted_at, found.certain) == (Course.APART, 3, certain)


def test_a_rounding_that_grows_over_many_steps_is_no_certain_difference() -> None:
    reference = side(losses=[2.0] * 40, steps=42)
    candidate = side(losses=[2.0] * 10 + [2.0000005] * 20 + [2.1] * 10, steps=42)
    assert not course_of(reference, candidate, equal=True).certain


def test_an_end_that_differs_behind_equal_losses_parts_them() -> None:
    found = course_of(side(), side(moved(1e-2)), equal=True)
    assert (found.course, found.certain) == (Course.APART, True)
    assert found.reasons == ("weight differs at the end, after equal losses",)
    assert (found.reasons[0].facts.why, found.reasons[0].facts.names) == (On.DIFFERS, ("weight",))


def test_an_end_that_roundings_explain_is_noise() -> None:
    assert course_of(side(), side(moved(6e-8)), equal=True).course is Course.NOISE


def test_ends_that_differ_as_the_steps_do_are_noise() -> None:
    candidate = side(moved(1e-4), losses=(3.0001, 2.0001, 1.0001))
    assert course_of(side(), candidate, equal=False).course is Course.NOISE


@pytest.mark.parametrize("equal", [True, False])
def test_what_one_run_trains_on_and_the_other_leaves_parts_them(equal: bool) -> None:
    found = course_of(side(), side(LAST), equal=equal)
    assert (found.course, found.certain) == (Course.APART, True)
    assert "weight does not change after the recorded steps in the candidate" in found.reasons[0]


def test_what_neither_trains_on_parts_nothing() -> None:
    assert course_of(side(LAST), side(LAST), equal=False).course is Course.NOISE


def test_another_number_of_steps_parts_them() -> None:
    found = course_of(side(), side(steps=6), equal=False)
    assert found.course is Course.APART
    assert str(*found.reasons) == "the reference trained 5 steps and the candidate 6"


def test_steps_that_were_counted_in_one_run_alone_are_told_by_their_losses() -> None:
    # Given an optimizer on one side, and updates by hand, which nobody counts, on the other
    by_hand = replace(side(), steps=None)
    assert course_of(side(), by_hand, equal=True).course is Course.EQUAL
    # Then a pass more is seen all the same
    longer = replace(side(losses=(3.0, 2.0, 1.0, 0.5)), steps=None)
    found = course_of(side(), longer, equal=True)
    assert (found.course, str(*found.reasons)) == (
        Course.APART,
        "the reference trained 3 backward passes after the recorded steps and the candidate 4",
    )


def test_a_run_that_was_ended_before_its_time_is_not_held_against_its_end() -> None:
    candidate = replace(
        side(moved(0.5), losses=(3.0,), steps=3), ended_by="the exception KeyboardInterrupt"
    )
    found = course_of(side(), candidate, equal=True)
    assert found.course is Course.UNKNOWN
    assert "the candidate was ended by the exception KeyboardInterrupt" in found.reasons[0]


def test_losses_up_to_there_are_held_against_each_other_all_the_same() -> None:
    candidate = replace(side(losses=(3.5,), steps=3), ended_by="SIGTERM, which it sent itself")
    assert course_of(side(), candidate, equal=True).parted_at == 2


def test_a_state_of_one_run_alone_parts_them() -> None:
    candidate = side()
    candidate.end.update(states(Moment.END, average=END))
    found = course_of(side(), candidate, equal=True)
    assert str(*found.reasons) == "average is there at the end of the candidate alone"


@pytest.mark.parametrize("why", ["was cut off", "has none"])
def test_an_end_that_was_not_recorded_is_said(why: str) -> None:
    found = course_of(side(), Side(None, why_none=why), equal=True)
    assert found.course is Course.UNKNOWN
    assert str(*found.reasons) == f"the end was not recorded in the candidate, which {why}"


def test_what_could_not_be_read_is_said() -> None:
    unread = side()
    key = (Role.PARAM, "weight")
    empty = replace(unread.end[key].content, digest=None, statistics=None, note="sparse_coo layout")
    unread.end[key] = replace(unread.end[key], content=empty)
    found = course_of(unread, unread, equal=True)
    assert found.course is Course.UNKNOWN
    assert str(*found.reasons) == "weight could not be read at the end: sparse_coo layout"
