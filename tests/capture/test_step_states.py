"""The state machine of steps by itself: its table, and what holds whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.capture.steps import TRANSITIONS, End, State, StepEvent, Steps
from lockstep.core.selection import StepSelection

EVERY_STEP = StepSelection.parse("0:")

ACTIONS: dict[str, Callable[[Steps], object]] = {
    "begin": Steps.begin,
    "module_called": Steps.module_called,
    "set_aside": Steps.set_aside,
    "make_certain": Steps.make_certain,
    "finish": Steps.finish,
    "abandon": Steps.abandon,
    "next": Steps.next,
    "wait": Steps.wait,
    "take_word": Steps.take_word,
    **{f"end {end.name}": lambda steps, end=end: steps.end(end) for end in End},
}
OPEN = {State.BEGUN, State.IN_MODEL, State.CERTAIN, State.LAST}


def steps_after(*actions: str, selection: StepSelection = EVERY_STEP) -> Steps:
    """The machine after some of `ACTIONS`."""
    steps = Steps(selection)
    for action in actions:
        ACTIONS[action](steps)
    return steps


# --- the table


def _told() -> dict[tuple[StepEvent, State], State]:
    """The transitions that the table in the docstring tells, by the places of its columns."""
    lines = [line.strip() for line in (Steps.__doc__ or "").splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith("====")]
    first, second, last = rules
    starts = [
        place for place in range(len(lines[first])) if f" {lines[first]}"[place:].startswith(" =")
    ]
    names = _cells(lines[first + 1], starts)
    events = [StepEvent[name.upper().replace(" ", "_")] for name in names[1:]]
    found = {}
    for line in lines[second + 1 : last]:
        state, *cells = _cells(line, starts)
        for event, cell in zip(events, cells, strict=True):
            if cell:
                found[event, State[state]] = State[cell]
    return found


def _cells(line: str, starts: list[int]) -> list[str]:
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_the_table_in_the_docstring_is_what_happens() -> None:
    moves = {
        (event, state): after
        for event, leads in TRANSITIONS.items()
        for state, after in leads.items()
        if after is not state
    }
    assert _told() == moves


def test_every_event_leads_somewhere_from_every_state() -> None:
    assert {event: set(leads) for event, leads in TRANSITIONS.items()} == {
        event: set(State) for event in StepEvent
    }


# --- a training as it goes


def test_a_step_begins_and_is_ended_by_its_optimizer() -> None:
    # given a training, when a module is called, backward runs and the optimizer steps,
    steps = steps_after("begin", "module_called", "make_certain")
    assert (steps.state, steps.is_open, steps.number) == (State.CERTAIN, True, 0)
    steps.end(End.ALL_STEPPED)
    steps.next()
    # then the step has ended, and the next one comes
    assert (steps.state, steps.is_open, steps.number) == (State.BETWEEN, False, 1)


@pytest.mark.parametrize("before", [(), ("module_called",)])
def test_what_was_set_aside_may_begin_again_under_the_same_number(before: tuple[str, ...]) -> None:
    steps = steps_after("begin", *before, "set_aside")
    assert (steps.is_open, steps.is_aside, steps.may_begin) == (False, True, True)
    steps.begin()
    assert (steps.state, steps.number) == (State.BEGUN, 0)


def test_what_is_certain_is_not_set_aside() -> None:
    assert steps_after("begin", "make_certain", "set_aside").state is State.CERTAIN


def test_a_module_behind_backward_does_not_make_the_step_uncertain() -> None:
    assert steps_after("begin", "make_certain", "module_called").state is State.CERTAIN


def test_a_module_that_is_called_between_steps_is_none_of_the_next() -> None:
    assert steps_after("module_called", "begin").is_idle


@pytest.mark.parametrize("end", [End.ALL_STEPPED, End.STEPPED_TWICE, End.UPDATE_SKIPPED])
def test_the_script_need_not_say_what_optimizers_have_said(end: End) -> None:
    # given a step that optimizers have ended, a left-out update among them,
    steps = steps_after("begin", "make_certain", f"end {end.name}", "next")
    # when the script says so too, then that counts once
    assert [steps.take_word(), steps.take_word()] == [False, True]


@pytest.mark.parametrize("end", [End.UPDATED_BY_HAND, End.SAID])
def test_the_script_ends_what_it_updates_by_hand(end: End) -> None:
    assert steps_after("begin", f"end {end.name}", "next").take_word()


def test_the_last_step_ends_recording() -> None:
    steps = steps_after("begin", "make_certain", "finish")
    assert (steps.is_open, steps.is_finished, steps.is_certain) == (True, True, False)
    steps.end(End.FINISHED)
    assert (steps.state, steps.is_open) == (State.FINISHED, False)


def test_steps_are_recorded_where_they_are_chosen_and_have_room() -> None:
    # given steps 1 and 2 of a training, when there is no room for the first of them,
    steps = steps_after(selection=StepSelection.parse("1:3"))
    chosen = [steps.is_chosen]
    steps.next()
    steps.wait()
    chosen.append(steps.is_chosen)
    steps.next()
    chosen.append(steps.is_chosen)
    # then that is left out and counted, and the other is recorded
    assert (chosen, steps.left_out) == ([False, False, True], 1)
    steps.next()
    assert (steps.is_chosen, steps.any_to_come) == (False, False)


# --- whatever happens


@given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=40))
def test_whatever_happens(actions: list[str]) -> None:
    steps, is_open, opened, closed = Steps(EVERY_STEP), False, 0, 0
    for action in actions:
        state, number, left_out = steps.state, steps.number, steps.left_out
        ACTIONS[action](steps)
        opened += steps.is_open and not is_open
        closed += is_open and not steps.is_open
        is_open = steps.is_open
        # at most one is open, and only where recording has not finished does one begin,
        assert opened - closed == is_open == (steps.state in OPEN)
        if steps.is_open and state not in OPEN:
            assert (action, state in (State.BETWEEN, State.ASIDE)) == ("begin", True)
        # numbers only grow, by one, and steps that are left out are among them,
        assert steps.number - number == (action == "next")
        assert left_out <= steps.left_out <= steps.number
        # one is certain only while it is open, and stays so until it ends,
        assert not steps.is_certain or steps.is_open
        if state is State.CERTAIN and steps.state is not State.CERTAIN:
            assert action.startswith(("end", "finish", "abandon"))
        # each question about the state has the answer of the others,
        assert steps.is_uncertain == (steps.is_open and not (steps.is_certain or steps.is_finished))
        assert steps.may_begin == (not steps.is_open and not steps.is_finished)
        assert not steps.is_idle or steps.is_uncertain
        assert not steps.is_aside or steps.may_begin
        # and what has finished is over
        assert state is not State.FINISHED or steps.state is State.FINISHED
        assert state is not State.LAST or steps.is_finished
