"""Two step logs: the first fact that ceases to be equal, and the step at which losses leave the growth of rounding."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.core.step_rows import Fact, FactDifference, StepLog, StepRow
from lockstep.locate.step_log.equal_facts import fact_differences
from lockstep.locate.step_log.growth import Value, growth_of


def log_of(change: Callable[[int], dict[str, Any]] = lambda step: {}, steps: int = 60) -> StepLog:
    rows = []
    for step in range(steps):
        row = StepRow(
            step, 1.0, 1, settings={"0.lr": 1e-3 * math.cos(step / 99), "trained": "4 of 4, 0a", "scale": 1024.0},
            batches={"0": f"1:{step:08x}"}, generators={"torch": f"{step:08x}"},
        )  # fmt: skip
        changes = change(step)
        settings = {**row.settings, **changes.pop("settings", {})}
        rows.append(dataclasses.replace(row, settings=settings, **changes))
    return StepLog(tuple(rows), ("cpu",))


def differences(reference: StepLog, candidate: StepLog) -> list[FactDifference]:
    pairs = list(zip(reference.rows, candidate.rows, strict=False))
    return fact_differences(reference, candidate, pairs, "")[1]


def late(**changes: Any) -> Callable[[int], dict[str, Any]]:
    return lambda step: dict(changes) if step >= 30 else {}


# --- facts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fact", "words"),
    [
        (late(settings={"0.lr": 0.5}), Fact.SETTING, "lr of parameter group 0 is 0.5"),
        (late(settings={"trained": "2 of 4, 0b"}), Fact.TRAINED, "parameters is 2 of 4, and 4 of 4"),
        (late(settings={"scale": 2048.0}), Fact.LOSS_SCALE, "the loss scale is 2048, and 1024"),
        (late(batches={"0": "1:ff"}), Fact.BATCH, "the batch is not that of the reference"),
        (late(generators={"torch": "ff"}), Fact.GENERATOR, "random generator of torch"),
        (late(passes=2), Fact.PASSES, "the number of backward passes is 2"),
    ],
    ids=lambda value: value.value if isinstance(value, Fact) else None,
)  # fmt: skip
def test_a_fact_that_ceases_to_be_equal_is_named_with_its_step(
    change: Callable[[int], dict[str, Any]], fact: Fact, words: str
) -> None:
    first = differences(log_of(), log_of(change))[0]

    assert (first.fact, first.step, first.certain) == (fact, 30, True)
    assert words in str(first)


def test_equal_logs_have_no_difference() -> None:
    assert differences(log_of(), log_of()) == []


def test_what_differs_from_the_start_is_left_to_the_recorded_steps() -> None:
    other = log_of(lambda step: {"batches": {"0": f"1:{step + 7:08x}"}, "settings": {"0.lr": 1.0}})

    assert differences(log_of(), other) == []


def test_another_rounding_of_a_cosine_is_none() -> None:
    lr = 1e-3 * math.cos(30 / 99)
    rounded = log_of(
        lambda step: {"settings": {"0.lr": math.nextafter(lr, 1)}} if step == 30 else {}
    )

    assert differences(log_of(), rounded) == []


def test_generators_of_different_devices_are_not_compared() -> None:
    other = dataclasses.replace(log_of(late(generators={"torch": "ff"})), devices=("npu",))

    assert differences(log_of(), other) == []


def test_a_data_set_that_one_run_asks_more_often_is_not_compared() -> None:
    assert differences(log_of(), log_of(late(batches={"0": "9:ff"}))) == []


def test_a_skipped_update_is_no_certain_difference_and_hides_what_follows_from_it() -> None:
    # given a candidate whose scaler skips at step 30, and whose scale and schedule are others from then on
    def skips(step: int) -> dict[str, Any]:
        settings = {"scale": 512.0, "0.lr": 2e-3} if step > 30 else {}
        return {"skipped": step == 30, "settings": settings}

    [skip] = differences(log_of(), log_of(skips))

    assert (skip.fact, skip.step, skip.certain) == (Fact.SKIPPED, 30, False)
    assert "the update is skipped by the gradient scaler, and made in the reference" in str(skip)


def test_a_batch_is_compared_after_a_skipped_update_all_the_same() -> None:
    def skips(step: int) -> dict[str, Any]:
        return {"skipped": step == 30} | ({"batches": {"0": "1:ff"}} if step >= 40 else {})

    assert [one.fact for one in differences(log_of(), log_of(skips))] == [Fact.SKIPPED, Fact.BATCH]


@pytest.mark.parametrize("apart", [True, False])
def test_a_rate_that_follows_losses_is_certain_only_while_these_are_equal(apart: bool) -> None:
    # given a schedule of the second optimizer that asks for losses, and lowers its rate in one run alone
    def follows(lowered: bool) -> Callable[[int], dict[str, Any]]:
        def change(step: int) -> dict[str, Any]:
            rate = 1e-4 if lowered and step >= 30 else 1e-3
            off = 1e-7 if lowered and apart else 0.0
            return {"settings": {"1.0.lr": rate, "1.by_loss": 1.0}, "loss": 1.0 + off}

        return change

    [one] = differences(log_of(follows(False)), log_of(follows(True)))

    assert (one.fact, one.step, one.certain) == (Fact.SETTING, 30, not apart)


# --- growth -----------------------------------------------------------------------------------------------------------


def losses(apart: Callable[[int, float], float], *, steps: int = 400, seed: int = 1) -> list[Value]:
    """Losses that fall and vary; `apart` gives their relative difference from a step and a number in [-1, 1]."""
    draws = random.Random(seed)
    found = []
    for step in range(steps):
        loss = 2.0 * math.exp(-step / 150) + 0.3 + 0.1 * draws.uniform(-1, 1)
        found.append(Value(step, loss, loss * (1 + apart(step, draws.gauss(0, 1)))))
    return found


def saturating(step: int, noise: float) -> float:
    return noise * min(1e-7 * 1.4**step, 1e-3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "apart",
    [
        saturating,
        lambda step, noise: 1e-7 * noise,
        lambda step, noise: noise * 1e-7 * (step + 1) ** 0.5,
        lambda step, noise: noise * min(1e-7 * 1.05**step, 3e-2),
        # the rate is raised at step 200: the difference grows anew
        lambda step, noise: noise * min(1e-7 * 1.5 ** max(step - 200, 0), 1e-2),
        lambda step, noise: 0.0 if step < 100 else saturating(step - 100, noise),
        lambda step, noise: 1e-2 * noise if step == 200 else 1e-6 * noise,
    ],
    ids=["saturating", "steady", "root", "slow", "late rise", "equal first", "one value"],
)
def test_sound_growth_is_left_nowhere(apart: Callable[[int, float], float], seed: int) -> None:
    found = growth_of("losses", losses(apart, seed=seed), dtype="float32")

    assert found is not None
    assert found.left_at is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("step", [20, 217, 350])
def test_a_jump_that_stays_is_named_with_its_step(step: int, seed: int) -> None:
    def faulty(now: int, noise: float) -> float:
        return 1e-6 * noise if now < step else 1e-3 + 1e-6 * noise

    found = growth_of("losses", losses(faulty, seed=seed), dtype="float32")

    assert found is not None
    assert found.left_at == step
    assert found.left_with > found.expected


def test_a_loss_of_16_bits_differs_by_its_own_roundings() -> None:
    def rounds(step: int, noise: float) -> float:
        return 0.0 if step < 100 else 2**-8 * round(noise)

    assert growth_of("losses", losses(rounds), dtype="bfloat16").left_at is None  # type: ignore[union-attr]


def test_a_spike_of_the_reference_is_no_departure() -> None:
    # given a loss that spikes in both runs at step 200, and enlarges their difference there
    values = losses(lambda step, noise: 1e-6 * noise)
    spiked = [
        Value(one.step, one.reference * 40, one.candidate * 40 + 0.01) if 200 <= one.step < 215 else one
        for one in values
    ]  # fmt: skip

    assert growth_of("losses", spiked, dtype="float32").left_at is None  # type: ignore[union-attr]


def test_a_state_that_was_set_begins_the_growth_anew() -> None:
    # given a candidate that was set to the reference's state at step 200, and a difference that is small again then
    def set_at_200(step: int, noise: float) -> float:
        return saturating(step, noise) if step < 200 else saturating(step - 200, noise)

    found = growth_of("losses", losses(set_at_200), dtype="float32", restarts=[200])

    assert found is not None
    assert found.left_at is None


def test_a_calibration_says_what_is_to_be_expected() -> None:
    def faulty(step: int, noise: float) -> float:
        return 1e-6 * noise if step < 200 else 1e-4 + 1e-6 * noise

    values = losses(faulty)
    small, large = ({one.step: size for one in values} for size in (1e-6, 1e-3))

    left = growth_of("losses", values, dtype="float32", noise=small)
    stays = growth_of("losses", values, dtype="float32", noise=large)

    assert left is not None
    assert (left.left_at, left.by_calibration) == (200, True)
    assert stays is not None
    assert stays.left_at is None


def test_a_loss_that_is_nan_in_one_run_alone_leaves_the_growth() -> None:
    values = losses(lambda step, noise: 1e-6 * noise)
    broken = [Value(one.step, one.reference, math.nan) if one.step >= 50 else one for one in values]

    assert growth_of("losses", broken, dtype="float32").left_at == 50  # type: ignore[union-attr]


def test_equal_losses_have_no_growth() -> None:
    assert growth_of("losses", losses(lambda step, noise: 0.0), dtype="float32") is None
