"""The search by halves: which state is the first that differs, in how many trials, and from an interrupted one on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lockstep.core.errors import CorruptError, OutputExistsError
from lockstep_tune.bisecting import Found, Outcome, Trial, TrialLog, first_that_differs
from lockstep_tune.switches import Ladder, State


def _ladder(count: int) -> Ladder:
    return Ladder("a switch", tuple(State(f"state {at}") for at in range(count)))


class _Judge:
    """Says that states from one on differ, and of some that nothing can be told."""

    def __init__(self, first: int, untold: tuple[int, ...] = ()) -> None:
        self.first, self.untold, self.runs = first, untold, 0

    def __call__(self, state: State) -> Trial:
        self.runs += 1
        at = int(state.name.split()[-1])
        if at in self.untold:
            return Trial(state.name, Outcome.UNTOLD, "the command ended with exit code 1")
        return Trial(state.name, Outcome.DIFFERS if at >= self.first else Outcome.AGREES, "as told")


def _search(count: int, judge: _Judge, file: Path | None = None) -> Found:
    return first_that_differs(_ladder(count), TrialLog(file, ["ref", "python"], judge))


@pytest.mark.parametrize("count", [2, 3, 5, 17, 100])
def test_each_state_is_found_in_few_trials(count: int) -> None:
    for first in range(1, count):
        judge = _Judge(first)
        found = _search(count, judge)
        assert found.first is not None
        assert found.before is not None
        assert (found.before.state, found.first.state) == (f"state {first - 1}", f"state {first}")
        assert judge.runs <= 2 + math.ceil(math.log2(count))


def test_where_the_command_agrees_nothing_is_searched() -> None:
    judge = _Judge(99)
    found = _search(17, judge)
    assert (found.agrees_throughout, found.first, judge.runs) == (True, None, 1)


def test_where_the_safest_state_differs_too_the_switch_is_not_blamed() -> None:
    judge = _Judge(0)
    found = _search(17, judge)
    assert (found.agrees_throughout, found.first, judge.runs) == (False, None, 2)


def test_states_that_cannot_be_told_are_named_between() -> None:
    # given states 7 and 8 that crash, of which 8 is the first to differ
    found = _search(17, _Judge(8, untold=(7, 8)))
    # then it is one of three
    assert found.first is not None
    assert found.before is not None
    assert (found.before.state, found.first.state) == ("state 6", "state 9")
    assert [one.state for one in found.between] == ["state 7", "state 8"]


def test_a_command_that_cannot_be_told_as_it_is_is_said() -> None:
    found = _search(5, _Judge(2, untold=(4,)))
    assert found.untold is not None
    assert found.untold.state == "state 4"
    assert not found.agrees_throughout


def test_an_interrupted_search_goes_on_from_its_log(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    whole = _Judge(5)
    _search(17, whole, file)
    # given the log as it was after three trials, cut in the fourth
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + lines[4][:10])
    # when
    rest = _Judge(5)
    found = _search(17, rest, file)
    # then the three are not run again
    assert rest.runs == whole.runs - 3
    assert found.first is not None
    assert found.first.state == "state 5"


def test_a_log_of_another_search_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    _search(3, _Judge(1), file)
    with pytest.raises(OutputExistsError, match="another search"):
        TrialLog(file, ["ref", "other"], _Judge(1))


def test_a_file_that_is_no_log_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("my notes\n")
    with pytest.raises(CorruptError, match="no log of lockstep bisect"):
        TrialLog(file, ["ref", "python"], _Judge(1))
    assert file.read_text() == "my notes\n"
