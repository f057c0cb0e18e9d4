"""What a result may be off, and which of two runs is: the formula that all judges of re-runs share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from lockstep.judge.tolerances import (
    FEW_ELEMENTS,
    KERNEL_ROUNDINGS,
    LOCAL_MARGIN,
    LOCAL_MARGIN_16_BIT,
    QUIET_UPDATE_ROUNDINGS,
    SINGLE,
    UPDATE_MARGIN,
)
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.error_bounds.distance import Size
from lockstep.replay.error_bounds.margin import Local, Margin, noise_of, within, within_each
from lockstep.replay.verdicts.which_run import both_alone, wrong_of

BF16 = 2.0**-8
ERROR = Size(1.0, 9.0)
FEW = 1.0 + FEW_ELEMENTS / 3.0


@pytest.mark.parametrize(
    ("margin", "noise", "expected"),
    [
        (Margin.of_calls(SINGLE, 2.0), 1.0, LOCAL_MARGIN * FEW + KERNEL_ROUNDINGS * SINGLE * 2.0),
        (Margin.of_calls(SINGLE, 2.0, 40.0), 0.0, 40.0 * SINGLE * 2.0),
        (Margin.of_calls(BF16, 2.0), 1.0, LOCAL_MARGIN_16_BIT * FEW),
        (Margin.of_calls(BF16, 2.0), 0.0, LOCAL_MARGIN_16_BIT * FEW * BF16 * 2.0 / 4),
        (Margin.of_update(SINGLE, 2.0), 1.0, UPDATE_MARGIN * FEW + QUIET_UPDATE_ROUNDINGS * SINGLE * 2.0),
    ],
)  # fmt: skip
def test_a_tolerance_is_noise_times_a_margin_and_some_roundings(
    margin: Margin, noise: float, expected: float
) -> None:
    assert margin.tolerance(ERROR, noise) == expected


def test_noise_that_is_not_finite_and_what_is_missing_allow_nothing() -> None:
    truth = torch.ones(4, dtype=torch.float64)
    assert noise_of([None, truth * math.inf, truth + 0.5], truth, None) == 1.0
    assert noise_of([None], truth, None) == 0.0


def test_a_wrong_element_among_sentinels_is_seen_in_its_own_population() -> None:
    # given scores beside a mask, with one score off by a thousandth, and its sound twin
    truth = torch.cat([torch.linspace(1, 2, 60), torch.full((20,), -3e38)]).double()
    off = truth.clone()
    off[3] *= 1.001
    # when each is held, then together with the mask nothing shows, and apart it does
    assert within(off, truth, [], SINGLE, None).sound
    assert not all(one.sound for one in within_each(off, truth, [], SINGLE))
    assert all(one.sound for one in within_each(truth.clone(), truth, [], SINGLE))


@dataclass(frozen=True)
class Run:
    """Is off by so much of what it may be, and may be as much as a sound other run."""

    off: float
    unit: float = SINGLE

    def local(self, other: Local | None = None) -> Local:
        allowed = 1.0 if other is None else max(1.0, 8.0 * other.error.norm)
        return Local(Size(self.off), allowed, 1.0)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("runs", "sound"),
    [
        ((Run(0.9), Run(4.0)), (True, True)),  # a sound kernel is nearly as far off
        ((Run(0.1), Run(4.0)), (True, False)),
        ((Run(0.9, BF16), Run(4.0)), (True, False)),  # of another dtype: no measure of it
        ((Run(2.0), Run(4.0)), (False, False)),  # neither is a measure of the other
    ],
)
def test_a_sound_run_of_the_same_dtype_tells_what_the_other_may_be_off(
    runs: tuple[Run, Run], sound: tuple[bool, bool], turned: bool
) -> None:
    if turned:
        runs, sound = (runs[1], runs[0]), (sound[1], sound[0])
    found = both_alone(*runs)
    assert (found[0].sound, found[1].sound) == sound


def test_one_of_two_runs_is_off_or_none_and_where_both_are_nothing_is_said() -> None:
    assert wrong_of((True, True), "") is None
    assert wrong_of((False, True), "") == 0
    assert wrong_of((True, False), "") == 1
    with pytest.raises(CannotReplay, match="neither is right"):
        wrong_of((False, False), "neither is right")
