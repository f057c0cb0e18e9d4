"""One rank beside a training of several of which something is missing: it is said which rank, and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_ranks import call, made

from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.finding import Verdict
from lockstep.store.reader import Recording

HALVES = [np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 3), "f4")]
TWO_STEPS = [[call("exp", half), call("exp", half + 1, step=1)] for half in HALVES]


@pytest.fixture
def one(tmp_path: Path) -> Recording:
    """The run of one rank."""
    whole = np.concatenate(HALVES)
    return made(tmp_path / "one", [call("exp", whole), call("exp", whole + 1, step=1)])


def test_a_whole_training_of_two_ranks_agrees(one: Recording, tmp_path: Path) -> None:
    found = compare_recordings(one, made(tmp_path / "two", *TWO_STEPS))
    assert (found.verdict, found.steps, found.endings) == (Verdict.AGREE, (0, 1), ())


def test_a_missing_rank_is_refused_by_its_number(one: Recording, tmp_path: Path) -> None:
    # given a training of two ranks of which one was not brought here
    shutil.rmtree(made(tmp_path / "two", *TWO_STEPS).path / "rank1")

    # when it is compared with one rank, then the message says which, of how many, and what to do
    for sides in (("one", "two"), ("two", "one")):
        with pytest.raises(UsageError) as refused:
            compare_recordings(*(tmp_path / side for side in sides))
        words = str(refused.value)
        assert "two: rank1 is missing" in words
        assert "1 of the training's 2 ranks" in words
        assert "copy rank1 here" in words


def test_a_second_process_of_a_rank_is_refused(one: Recording, tmp_path: Path) -> None:
    two = made(tmp_path / "two", *TWO_STEPS, TWO_STEPS[1], told={2: {"rank": "rank1-1"}})
    with pytest.raises(UsageError, match="rank1-1 is a second process of its rank"):
        compare_recordings(one, two)


def test_two_and_three_ranks_of_which_nothing_is_told_are_refused(tmp_path: Path) -> None:
    two, three = (
        made(tmp_path / name, *ranks)
        for name, ranks in (("two", TWO_STEPS), ("three", [*TWO_STEPS, TWO_STEPS[0]]))
    )
    with pytest.raises(UsageError, match=r"is of 2 ranks and .* of 3, .* compare each with a"):
        compare_recordings(two, three)


def test_a_rank_that_died_is_named_and_nothing_agrees(one: Recording, tmp_path: Path) -> None:
    # given a training of which the second rank was killed in its second step
    died = {1: {"state": "recording", "ended_by": "signal 9 (SIGKILL)"}}
    two = made(tmp_path / "two", TWO_STEPS[0], TWO_STEPS[1][:1], told=died)

    # when it is compared with one rank
    found = compare_recordings(one, two)

    # then what both ranks recorded was compared, and the rank, its end and its steps are said
    assert (found.verdict, found.origins, found.steps) == (Verdict.INCOMPARABLE, (), (0,))
    said = " ".join(found.not_compared)
    assert "rank1 of 2 did not record step 1 to the end, as rank1 was ended by signal 9" in said
    assert "rank1 of the candidate was ended by signal 9 (SIGKILL)" in said
