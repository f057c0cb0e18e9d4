"""The words in which two commands differ, and the search among them."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from lockstep_tune.arguments import arguments
from lockstep_tune.bisecting import Outcome, Trial, TrialLog
from lockstep_tune.searching import Answer, search_differences
from lockstep_tune.switches import AS_IT_IS, State


def _differing(left: str, right: str) -> dict[str, tuple[str, ...]]:
    found = arguments(shlex.split(left), shlex.split(right))
    return {one.name: one.values for one in found.each}


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("p t.py --lr 0.1", "q t.py --lr=0.1", {}),
        ("p t.py --lr 0.1", "p t.py --lr -1", {"--lr": ("--lr 0.1", "--lr -1")}),
        ("p t.py", "p t.py --amp", {"--amp": ("no --amp", "--amp")}),
        ("p t.py --amp", "p t.py", {"--amp": ("--amp", "no --amp")}),
        ("p t.py --b 0.9 0.95", "p t.py --b 0.9 0.99", {"--b": ("--b 0.9 0.95", "--b 0.9 0.99")}),
        ("p t.py a.lr=1 b=2", "p t.py b=3 a.lr=1", {"b": ("b=2", "b=3")}),
        ("p t.py one", "p t.py two", {"argument 2": ("one", "two")}),
        ("p t.py --api-key '***' --x 1", "p t.py --api-key abc --x 1", {}),
    ],
)
def test_arguments_that_differ_are_told_apart(
    left: str, right: str, expected: dict[str, tuple[str, ...]]
) -> None:
    assert _differing(left, right) == expected


def _search(left: str, right: str, differs: Callable[[list[str]], bool]) -> tuple[Answer, int]:
    """Search with a judge that reads the command."""
    ran: list[list[str]] = []

    def judge(state: State) -> Trial:
        words = list(state.command) or shlex.split(right)
        ran.append(words)
        outcome = Outcome.DIFFERS if differs(words) else Outcome.AGREES
        return Trial(state.name, outcome, "as told")

    found = arguments(shlex.split(left), shlex.split(right))
    return search_differences(found, TrialLog(None, ["ref"], judge)), len(ran)


LEFT = "p t.py --a 1 --b 1 --c 1 --d 1 --e 1 --f 1 --g 1"
RIGHT = "p t.py --a 2 --c 2 --b 2 --d 2 --new x --e 2 --f 2"


@pytest.mark.parametrize("culprit", ["--a 2", "--b 2", "--f 2", "--new x"])
def test_one_argument_of_many_is_found_in_few_trials(culprit: str) -> None:
    answer, count = _search(LEFT, RIGHT, lambda words: culprit in shlex.join(words))

    assert answer.smallest == (culprit.split()[0],)
    assert answer.together == ()
    assert count <= 9


def test_an_argument_that_is_missing_is_found() -> None:
    answer, _ = _search(LEFT, RIGHT, lambda words: "--g" not in words)

    assert answer.smallest == ("--g",)


def test_two_causes_are_both_named_and_two_that_need_each_other_are_told() -> None:
    either, _ = _search(
        LEFT, RIGHT, lambda words: "--a 2" in (line := shlex.join(words)) or "--f 2" in line
    )
    both, _ = _search(
        LEFT, RIGHT, lambda words: "--a 2" in (line := shlex.join(words)) and "--f 2" in line
    )

    assert sorted(either.smallest) == ["--a", "--f"]
    assert {*both.smallest, *both.together} == {"--a", "--f"}


def test_no_two_states_have_one_name() -> None:
    found = arguments(shlex.split(LEFT), shlex.split(RIGHT))
    path = [*found.path(found.lowest, found.highest), (0, *found.highest[1:])]
    names = [found.state_at(one).name for one in path]

    assert len(set(names)) == len(names)
    assert found.state_at(found.highest) is AS_IT_IS
