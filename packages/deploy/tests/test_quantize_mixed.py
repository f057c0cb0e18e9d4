"""Mixed widths: a target is reached with few layers raised, in few trials."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_deploy.quantize.mixed import middle_bits, searched
from lockstep_deploy.quantize.task import Outcome


def outcome_of(noise):
    return Outcome(-10 * math.log10(noise) if noise else math.inf, None, None, 0.0, 0.0, 0, 0)


def search(noises, target, *, bits=4, middle=9, floor=0.0):
    """A search over layers whose errors add up, each bit less of which halves them."""
    names = sorted(noises, key=noises.get, reverse=True)

    def attempt(plan):
        assert set(plan) == set(noises)
        return outcome_of(
            floor
            + sum(
                noise * 4.0 ** (bits - plan[name])
                for name, noise in noises.items()
                if plan[name] < 32
            )
        )

    return searched(names, bits, middle, target, attempt)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=130), st.floats(-20, 80))
def test_the_target_is_reached_in_at_most_two_logarithms_and_four_trials(noises, target):
    found = search({f"layer{at}": noise for at, noise in enumerate(noises)}, target)
    assert found.chosen.reaches
    assert found.chosen.outcome.sqnr_db >= target
    assert len(found.trials) <= 2 * math.log2(len(noises)) + 4
    assert len({tuple(one.bits.items()) for one in found.trials}) == len(found.trials)


def test_only_the_layers_that_miss_it_are_raised_and_no_further_than_need_be():
    noises = {"stem": 1e-1, "head": 1e-2, **{f"block{at}": 1e-6 for at in range(6)}}

    def raised(target):
        return {
            name: bits for name, bits in search(noises, target).chosen.bits.items() if bits != 4
        }

    assert raised(15.0) == {"stem": 9}
    assert raised(30.0) == {"stem": 9, "head": 9}
    assert raised(45.0) == {"stem": 32, "head": 9}
    assert search(noises, 5.0).chosen.bits == dict.fromkeys(noises, 4)
    assert len(search(noises, 5.0).trials) == 1


def test_a_target_that_float32_misses_is_missed_and_the_best_plan_is_given():
    found = search({"one": 0.1, "two": 0.2}, 60.0, floor=1e-4)
    assert not any(one.reaches for one in found.trials)
    assert (
        found.chosen.outcome.sqnr_db
        == max(one.outcome.sqnr_db for one in found.trials)
        == pytest.approx(40)
    )


def test_the_middle_width_is_what_six_decibels_a_bit_ask_for():
    assert middle_bits(4, 20.0, 1, 44.0) == 8
    assert middle_bits(8, 41.0, 4, 40.0) == 9
    assert middle_bits(2, 5.0, 10, 90.0) == 16
