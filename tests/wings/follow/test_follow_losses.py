"""The losses that a training is followed by: how far apart they are, in which floors, and what is said of them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lockstep
from lockstep.core.errors import ExitCode, UsageError
from lockstep.following.followed_losses import (
    ExpectedLoss,
    LossComparison,
    ask_to_record,
    end_line,
    expected_in,
    heard_in,
    heard_line,
    heard_path,
    step_to_record,
    write_expected,
)
from lockstep.launch import Ended
from lockstep.store.reader import Recording
from lockstep.wings.follow.chart import loss_chart
from lockstep.wings.follow.loss_floors import LossFloors, loss_floors
from lockstep.wings.follow.loss_following import FollowedRank, LossesFollowed
from lockstep.wings.follow.loss_words import losses_code, losses_text

FLOATS = st.floats(width=64)
ONE_A_STEP = [ExpectedLoss(step, 1.0, 0.5) for step in range(3)]


def floors_of(expected: Sequence[ExpectedLoss], *heard: tuple[int, float]) -> list[float]:
    comparison = LossComparison(expected)
    return [pair.floors for loss in heard for pair in comparison.add(*loss)]


def test_losses_are_apart_in_units_of_their_floor() -> None:
    assert floors_of(ONE_A_STEP, (0, 1.0), (1, 1.25), (2, 3.0)) == [0.0, 0.5, 4.0]


def test_what_is_not_finite_parts_unless_both_are() -> None:
    expected = [ExpectedLoss(0, math.nan, 0.0), ExpectedLoss(1, 1.0, 0.5)]
    assert floors_of(expected, (0, math.nan), (1, math.nan)) == [0.0, math.inf]


def test_backward_passes_that_only_one_run_has_part_the_two() -> None:
    # Given a reference with a backward pass a step
    # When the candidate leaves one out, or takes one more
    # Then that is told at once where it can be, and no step without a loss of the reference is judged
    assert floors_of(ONE_A_STEP, (0, 1.0), (2, 1.0)) == [0.0, math.inf, 0.0]
    assert floors_of(ONE_A_STEP, (0, 1.0), (0, 1.0)) == [0.0, math.inf]
    assert math.isnan(floors_of(ONE_A_STEP, (7, 1.0))[-1])


@given(st.lists(st.tuples(st.integers(0, 1 << 40), FLOATS, FLOATS)))
def test_expected_and_heard_losses_come_back_as_they_were(
    rows: list[tuple[int, float, float]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        expected = [ExpectedLoss(*row) for row in rows]
        write_expected(there, {"rank0": expected, "rank1": []})
        assert repr(expected_in(there, "rank0")) == repr(expected)
        assert expected_in(there, "rank1") == []
        lines = "".join(heard_line(step, value) for step, value, _ in rows)
        heard_path(there, "rank0", 1).write_text(lines + "12 0x1.0")
        heard_path(there, "rank0", 2).write_text("")
        assert repr(heard_in(there)["rank0"].losses) == repr(tuple(row[:2] for row in rows))
        assert not heard_in(there)["rank0"].ended
        heard_path(there, "rank0", 1).write_text(lines + end_line(3))
        assert heard_in(there)["rank0"].ended


def test_the_first_who_asks_for_a_step_is_heard(tmp_path: Path) -> None:
    assert step_to_record(tmp_path) is None
    ask_to_record(tmp_path, 7)
    ask_to_record(tmp_path, 9)
    assert step_to_record(tmp_path) == 7


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, Recording]:
    """A training of six steps, two of them recorded, and its calibration."""
    folder = tmp_path_factory.mktemp("losses")
    for name, calibrate in (("ref", False), ("cal", True)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lockstep.record(folder / name, model=model, steps="0:2", calibrate=calibrate):
            for _ in range(6):
                optimizer.zero_grad()
                model(torch.randn(16, 8)).square().mean().backward()
                optimizer.step()
    return lockstep.open(folder / "ref"), lockstep.open(folder / "cal")


def test_floors_of_a_reference_are_of_all_its_losses(trained: tuple[Recording, Recording]) -> None:
    # Given a reference, and its calibration
    # When floors are taken from the one alone, and from both
    alone, calibrated = loss_floors(trained[0], None), loss_floors(*trained)
    # Then each loss has one, within recorded steps and behind, never smaller than the rounding of a sum
    for floors in (alone.expected["rank0"], calibrated.expected["rank0"]):
        assert [loss.step for loss in floors] == [0, 1, 2, 3, 4, 5]
        assert all(4e-7 * loss.value < loss.floor < 1e-3 * loss.value for loss in floors)
    assert "--calibrate" in alone.words
    assert [loss.value for loss in alone.expected["rank0"]] == [
        loss.value for loss in calibrated.expected["rank0"]
    ]


def test_a_calibration_of_other_steps_is_refused(
    trained: tuple[Recording, Recording], tmp_path: Path
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(tmp_path / "none", model=model, steps="0:1"):
        model(torch.ones(1, 2)).sum()
        optimizer.step()
    with pytest.raises(UsageError, match="has no loss of a step of the reference"):
        loss_floors(trained[0], lockstep.open(tmp_path / "none"))
    with pytest.raises(UsageError, match="has no loss; record it again"):
        loss_floors(lockstep.open(tmp_path / "none"), None)


def followed(
    heard: Sequence[tuple[int, float]], *, is_whole: bool = True, code: int = 0
) -> LossesFollowed:
    comparison = LossComparison(ONE_A_STEP)
    pairs = tuple(pair for loss in heard for pair in comparison.add(*loss))
    ended = Ended(code, "no loss", as_asked=False, left_out=0, trained=0)
    ranks = (FollowedRank("rank0", pairs, 2, is_whole),) if heard else ()
    return LossesFollowed(ranks, None, ended)


EQUAL = [(0, 1.0), (1, 1.0), (2, 1.0)]


@pytest.mark.parametrize(
    ("losses", "code", "words"),
    [
        (followed(EQUAL), ExitCode.AGREES, "losses agree: steps 0-2"),
        (followed([*EQUAL, (3, 1.0)]), ExitCode.AGREES, "not compared: 1 steps, 3 to 3"),
        (followed(EQUAL[:2]), ExitCode.AGREES, "not compared: steps 2-2 of the reference"),
        (followed(EQUAL, is_whole=False), ExitCode.FAILED, "heard to step 2 alone"),
        (followed(EQUAL, code=9), ExitCode.FAILED, "losses agree"),
        (followed([(0, 9.0)]), ExitCode.DIFFERS, "losses part at step 0"),
        (followed([]), ExitCode.FAILED, "nothing was compared: no loss"),
        (followed([(5, 1.0)]), ExitCode.DIFFERS, "none here, inf floors apart"),
    ],
)
def test_what_was_not_compared_is_said(losses: LossesFollowed, code: ExitCode, words: str) -> None:
    floors = LossFloors({"rank0": ONE_A_STEP}, "the floor")
    assert losses_code(losses, floors) == code
    assert words in "\n".join(losses_text(losses, floors))


def test_a_rank_that_was_not_heard_is_no_agreement() -> None:
    floors = LossFloors({"rank0": ONE_A_STEP, "rank1": ONE_A_STEP}, "the floor")
    assert losses_code(followed(EQUAL), floors) == ExitCode.FAILED
    assert "rank1: no loss was heard" in "\n".join(losses_text(followed(EQUAL), floors))


def test_a_crashed_training_agrees_where_that_is_allowed_alone() -> None:
    floors = LossFloors({"rank0": ONE_A_STEP}, "the floor")
    assert losses_code(followed(EQUAL, code=9), floors) == ExitCode.FAILED
    assert losses_code(followed(EQUAL, code=9), floors, allow_crash=True) == ExitCode.AGREES
    assert any("exit code 9" in words for words in losses_text(followed(EQUAL, code=9), floors))


def test_the_chart_of_losses_shows_the_furthest_of_each_stretch() -> None:
    lines = loss_chart({step: 3.0 if step == 57 else 0.1 for step in range(100)}).splitlines()
    assert "the furthest of each 3 steps" in lines[0]
    assert any(line.startswith("  57  ") and line.endswith(" 3") for line in lines)
