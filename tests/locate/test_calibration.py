"""Judging by how far the reference itself moves under noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tiny_run import Alteration, Array, TinyRun, recording

from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase

COMPUTED = (
    ["fc1", "relu", "fc2", "loss", "update"]
    + [f"grad {name}" for name in ["fc2", "relu", "fc1", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]]
)  # fmt: skip


def random_rounding(seed: int) -> Alteration:
    generator = np.random.default_rng(seed)

    def rounded(value: Array) -> Array:
        noise = generator.uniform(-1, 1, value.shape)
        return (value * (1 + noise * 2.0**-24)).astype(np.float32)

    return rounded


def noisy(seed: int, faults: Mapping[str, Alteration] | None = None, **options: int) -> TinyRun:
    """A run with random rounding at every operator, as a calibration or as another device."""
    alter: dict[str, Alteration] = {place: random_rounding(seed) for place in COMPUTED}
    for place, fault in (faults or {}).items():
        alter[place] = lambda value, noise=alter[place], fault=fault: fault(noise(value))
    return TinyRun(alter=alter, **options)  # type: ignore[arg-type]


def judged(candidate: TinyRun, *noise: TinyRun) -> Comparison:
    return compare_recordings(
        recording(TinyRun(steps=len(candidate.steps))),
        recording(candidate),
        calibration=recording(noise[0]) if noise else None,
        noise=[recording(run) for run in noise[1:]],
    )


def slightly_more(value: Array) -> Array:
    return (value * np.float32(1 + 3e-6)).astype(np.float32)


def test_a_calibration_sees_what_the_error_model_must_let_pass() -> None:
    # Given a candidate with noise everywhere, and a layer that is off by 25 times the noise
    candidate = noisy(1, {"fc2": slightly_more})

    # Then the error model's bound for sums of products names nothing, and the calibration does
    assert judged(candidate).verdict is not Verdict.DIVERGED
    found = judged(candidate, noisy(2))
    assert found.judged_by == "calibration"
    origin = found.origins[0]
    assert (origin.module, origin.phase, origin.kind) == ("fc2", Phase.FORWARD, Kind.FAULT)
    assert origin.finding.judged_by == "calibration"


@pytest.mark.parametrize("seed", range(20))
def test_another_sound_device_stays_silent(seed: int) -> None:
    found = judged(noisy(seed, steps=2), noisy(100 + seed, steps=2))
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


def test_a_fault_beyond_all_noise_is_named_as_without_calibration() -> None:
    # Given a candidate whose inputs to later sites are far beyond what was calibrated
    candidate = noisy(1, {"fc1": lambda value: value * np.float32(1.5)})

    # Then only the place of the fault is an origin
    found = judged(candidate, noisy(2))
    assert [origin.module for origin in found.origins] == ["fc1"]


def test_repetitions_of_the_reference_serve_as_well() -> None:
    candidate = noisy(1, {"fc2": slightly_more})
    found = compare_recordings(
        recording(TinyRun()), recording(candidate), noise=[recording(noisy(2)), recording(noisy(3))]
    )
    assert [origin.module for origin in found.origins] == ["fc2"]


def test_noise_of_another_step_is_refused() -> None:
    # Given a calibration that holds no step of the reference
    empty = recording(noisy(2))
    empty.ranks["rank0"].steps = ()  # type: ignore[misc]

    # Then it is refused in one sentence
    with pytest.raises(UsageError, match="has no step of"):
        compare_recordings(recording(TinyRun()), recording(noisy(1)), calibration=empty)
