"""Where two runs part: each planted fault is named, and its sound twin stays silent."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from tiny_run import Alteration, Array, TinyRun, recording

from lockstep.comparison import Rule, compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Outcome, Verdict
from lockstep.core.site import Phase, Role
from lockstep.store.reader import open_recording


def compared(reference: TinyRun, candidate: TinyRun, rule: Rule = Rule.ERROR_MODEL) -> Comparison:
    return compare_recordings(recording(reference), recording(candidate), rule=rule)


def times(factor: float) -> Alteration:
    return lambda value: (value * np.float32(factor)).astype(value.dtype)


def rounded_to_half(value: Array) -> Array:
    return value.astype(np.float16).astype(np.float32)


def last_bit(value: Array) -> Array:
    """What another order of summation does: every element off by an ulp or less."""
    noise = np.random.default_rng(1).integers(-1, 2, value.shape)
    return (value * (1 + noise * 2.0**-24)).astype(np.float32)


def flipped(value: Array) -> Array:
    return value[::-1].copy()


def one_nan(value: Array) -> Array:
    value = value.copy()
    value.flat[3] = np.nan
    return value


def one_pixel(value: Array) -> Array:
    value = value.copy()
    value.flat[5] += 1
    return value


FAULTS = [
    # place, alteration, phase, module, operator, role, parameter
    ("init", one_pixel, Phase.INIT, "fc1", "torch.nn.Linear", Role.PARAM, "fc1.weight"),
    ("data", one_pixel, Phase.DATA, "", "batch", Role.OUTPUT, "args.0 of net"),
    ("fc1", rounded_to_half, Phase.FORWARD, "fc1", "torch.nn.functional.linear", Role.OUTPUT, ""),
    ("relu", times(1.001), Phase.FORWARD, "net", "torch.nn.functional.relu", Role.OUTPUT, ""),
    ("fc2", flipped, Phase.FORWARD, "fc2", "torch.nn.functional.linear", Role.OUTPUT, ""),
    ("fc2", one_nan, Phase.FORWARD, "fc2", "torch.nn.functional.linear", Role.OUTPUT, ""),
    ("loss", times(1.001), Phase.FORWARD, "", "torch.nn.functional.mse_loss", Role.OUTPUT, ""),
    (
        "grad fc2",
        times(1.01),
        Phase.BACKWARD,
        "fc2",
        "torch.nn.functional.linear",
        Role.GRAD_INPUT,
        "",
    ),
    ("grad fc2", flipped, Phase.BACKWARD, "fc2", "torch.nn.functional.linear", Role.GRAD_INPUT, ""),
    (
        "grad fc1.weight",
        times(1.02),
        Phase.BACKWARD,
        "fc1",
        "torch.nn.functional.linear",
        Role.PARAM_GRAD,
        "fc1.weight",
    ),
    ("enter relu", times(1.01), Phase.BACKWARD, "net", "Net", Role.GRAD_OUTPUT, ""),
    (
        "accumulated",
        times(1.05),
        Phase.BACKWARD,
        "fc1",
        "accumulate_grad",
        Role.PARAM_GRAD,
        "fc1.weight",
    ),
    (
        "update",
        times(1.05),
        Phase.OPTIMIZER,
        "fc1",
        "torch.optim.SGD",
        Role.PARAM_AFTER,
        "fc1.weight",
    ),
]


@pytest.mark.parametrize(("place", "alteration", "phase", "module", "op", "role", "tensor"), FAULTS)
@pytest.mark.parametrize("noise", [False, True], ids=["same machine", "other kernels"])
@pytest.mark.parametrize("exchanged", [False, True], ids=["as is", "exchanged"])
def test_a_planted_fault_is_the_only_origin(
    place: str,
    alteration: Alteration,
    phase: Phase,
    module: str,
    op: str,
    role: Role,
    tensor: str,
    noise: bool,
    exchanged: bool,
) -> None:
    # Given a run and one that is wrong at one place, perhaps with other kernels in front of it
    background = {"fc1": last_bit} if noise and place != "fc1" else {}
    sides = TinyRun(), TinyRun(alter={**background, place: alteration})
    # When they are compared, in either order
    comparison = compared(*(sides[::-1] if exchanged else sides))
    # Then this place, and no other, is named
    assert comparison.verdict is Verdict.DIVERGED
    assert len(comparison.origins) == 1
    origin = comparison.origins[0]
    assert (origin.phase, origin.module, origin.op, origin.role) == (phase, module, op, role)
    assert not tensor or origin.tensor == tensor


@pytest.mark.parametrize(
    "place", sorted({fault[0] for fault in FAULTS} - {"relu", "accumulated", "grad relu"})
)
def test_noise_of_the_last_bit_is_no_fault_anywhere(place: str) -> None:
    # Given two runs that differ by single roundings at one place
    # (a relu, and a gradient that is only handed on, have nothing to round)
    comparison = compared(TinyRun(steps=2), TinyRun(alter={place: last_bit}, steps=2))
    # Then they agree, although not a single gradient is bitwise equal
    assert comparison.verdict is Verdict.AGREE
    assert comparison.origins == ()
    assert comparison.inherited == 0


def test_equal_runs_agree_bit_by_bit() -> None:
    comparison = compared(TinyRun(steps=2), TinyRun(steps=2))
    assert comparison.verdict is Verdict.AGREE
    assert comparison.missing == 0
    assert {finding.difference for finding in comparison.findings} == {0.0}


def test_a_learning_rate_is_named_with_both_values_and_once_for_all_steps() -> None:
    # Given another learning rate
    comparison = compared(TinyRun(steps=3), TinyRun(settings={"lr": 0.055}, steps=3))
    # Then there is one origin for four parameters and three steps
    assert [(one.step, one.phase, one.module) for one in comparison.origins] == [
        (0, Phase.OPTIMIZER, "fc1")
    ]
    reason = comparison.origins[0].reason
    assert reason == "lr is 0.05 in the reference and 0.055 in the candidate (4 parameters)"


def test_gradients_changed_between_backward_and_optimizer_are_named_so() -> None:
    comparison = compared(TinyRun(), TinyRun(alter={"clipped": times(0.5)}))
    assert len(comparison.origins) == 1
    origin = comparison.origins[0]
    assert origin.phase is Phase.BACKWARD
    assert origin.op.startswith("gradient between backward and optimizer")
    assert "fc1.bias" in origin.reason


def test_a_gradient_scaled_alike_in_both_runs_is_no_fault() -> None:
    half = {"clipped": times(0.5)}
    comparison = compared(TinyRun(alter=half), TinyRun(alter={**half, "fc1": last_bit}))
    assert comparison.verdict is Verdict.AGREE


def test_an_operator_written_out_by_hand_agrees_and_moves_nothing_else() -> None:
    # Given a relu of two operators against one
    comparison = compared(TinyRun(), TinyRun(by_hand=True))
    # Then it stands against the second of them by what both return, and only the first stays alone
    assert comparison.verdict is Verdict.AGREE
    assert (comparison.unaligned_reference, comparison.unaligned_candidate) == (0, 1)


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_fault_in_an_operator_written_out_by_hand_is_named_by_the_operator(
    exchanged: bool,
) -> None:
    sides = TinyRun(), TinyRun(by_hand=True, alter={"relu": times(1.001)})
    comparison = compared(*(sides[::-1] if exchanged else sides))
    assert [(one.module, one.op) for one in comparison.origins] == [
        ("net", "torch.nn.functional.relu")
    ]


def test_one_call_more_shifts_nothing() -> None:
    comparison = compared(TinyRun(), TinyRun(extra=True))
    assert comparison.verdict is Verdict.AGREE
    assert (comparison.unaligned_reference, comparison.unaligned_candidate) == (0, 1)


def test_another_spelling_of_an_operator_is_the_same_operator() -> None:
    comparison = compared(TinyRun(), TinyRun(spelling="torch.relu"))
    assert comparison.verdict is Verdict.AGREE
    assert comparison.unaligned_reference == 0


def test_two_independent_faults_are_both_named_in_order_of_time() -> None:
    # Given a small fault forward and a large one backward
    candidate = TinyRun(alter={"fc1": rounded_to_half, "grad fc2": times(1.5)})
    origins = compared(TinyRun(), candidate).origins
    assert [(one.phase, one.module) for one in origins] == [
        (Phase.FORWARD, "fc1"),
        (Phase.BACKWARD, "fc2"),
    ]


def test_an_operator_that_is_wrong_in_both_passes_is_one_origin() -> None:
    candidate = TinyRun(alter={"fc2": rounded_to_half, "grad fc2": times(1.5)})
    origins = compared(TinyRun(), candidate).origins
    assert [(one.phase, one.module) for one in origins] == [(Phase.FORWARD, "fc2")]


def test_everything_behind_an_origin_is_inherited() -> None:
    comparison = compared(TinyRun(), TinyRun(alter={"fc1": rounded_to_half}))
    differing = [one for one in comparison.findings if one.outcome is Outcome.DIFFER]
    assert sum(not one.inherited for one in differing) == 1
    assert comparison.inherited > 5


def test_a_batch_of_another_shape_is_a_different_batch() -> None:
    comparison = compared(TinyRun(), TinyRun(rows=48))
    assert comparison.origins[0].phase is Phase.DATA
    assert "(64, 16) in the reference and (48, 16) in the candidate" in comparison.origins[0].reason
    assert {one.phase for one in comparison.origins} == {Phase.DATA}


def test_nan_in_both_runs_alike_agrees() -> None:
    wrong = {"fc2": one_nan}
    with np.errstate(invalid="ignore"):
        comparison = compared(TinyRun(alter=wrong), TinyRun(alter=wrong))
    assert comparison.verdict is Verdict.AGREE


@pytest.mark.parametrize("place", ["fc1", "relu", "grad fc2", "grad relu", "update"])
def test_numbers_whose_squares_are_beyond_all_numbers_are_compared(place: str) -> None:
    # given two runs in float64 that blow up at one place, and one that does so otherwise
    with np.errstate(all="ignore"):
        first, again, other = (
            TinyRun(alter={place: lambda value, by=by: value.astype(np.float64) * by})
            for by in (1e200, 1e200, 3e200)
        )
    # then the first two agree, and nothing is said of the third that is not known
    assert compared(first, again).verdict is Verdict.AGREE
    assert compared(first, other).verdict in (Verdict.DIVERGED, Verdict.INCOMPARABLE)


def test_the_fixed_rule_passes_what_it_was_made_to_pass_and_names_what_it_fails() -> None:
    # Given a fault of 2e-4 that keeps a cosine of 1.0000, and one that does not
    small = compared(TinyRun(), TinyRun(alter={"fc1": rounded_to_half}), Rule.FIXED)
    large = compared(TinyRun(), TinyRun(alter={"fc2": flipped}), Rule.FIXED)
    # Then the fixed rule is blind to the first
    assert (small.verdict, small.judged_by) == (Verdict.AGREE, "fixed")
    assert [one.module for one in large.origins] == ["fc2"]


def test_a_fault_of_another_rank_comes_in_through_the_all_reduce() -> None:
    # Given two ranks, of which only the second goes wrong in backward, and gradients that are mixed
    good, bad = TinyRun(), TinyRun(alter={"grad fc1.weight": times(2)})
    mixed = TinyRun(alter={"clipped": times(1.5)})
    comparison = compare_recordings(recording(good, good), recording(mixed, bad))
    # Then rank 0, whose gradients changed only on the way to the optimizer, is not blamed
    assert [one.finding.pair.present.role for one in comparison.origins] == [Role.PARAM_GRAD]
    # And where the second rank is right, rank 0 is
    alone = compare_recordings(recording(good, good), recording(mixed, good))
    assert [one.op.split(" (")[0] for one in alone.origins] == [
        "gradient between backward and optimizer"
    ]


def test_steps_that_only_one_run_has_make_no_agreement() -> None:
    comparison = compared(TinyRun(steps=1), TinyRun(steps=2))
    assert comparison.verdict is Verdict.INCOMPARABLE
    assert comparison.not_compared == ("rank0: step 1 is complete only in the candidate",)


def test_a_rank_that_only_one_run_has_makes_no_agreement() -> None:
    run = TinyRun()
    comparison = compare_recordings(recording(run, run), recording(run))
    assert comparison.verdict is Verdict.INCOMPARABLE
    assert comparison.not_compared == ("rank1 occurs only in the reference",)


def test_other_models_are_said_to_be_so() -> None:
    # Given two recordings whose module paths have nothing in common
    other = recording(TinyRun())
    paths = pl.DataFrame(
        {"module": ["encoder", "encoder.embed", "decoder"], "module_class": ["M"] * 3}
    )
    vars(other.ranks["rank0"])["module_table"] = paths
    comparison = compare_recordings(recording(TinyRun()), other)
    assert comparison.verdict is Verdict.INCOMPARABLE
    assert "different models" in comparison.not_compared[0]


def test_only_the_steps_asked_for_are_compared() -> None:
    reference, candidate = TinyRun(steps=2), TinyRun(alter={"fc1": rounded_to_half}, steps=2)
    told: list[tuple[str, int, int]] = []
    comparison = compare_recordings(
        recording(reference),
        recording(candidate),
        steps={1},
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert told == [("step 1 (1 of 1)", done, len(told)) for done in range(len(told))]
    assert told
    assert {one.pair.present.step for one in comparison.findings} == {1}


def test_no_step_in_common_is_one_sentence() -> None:
    comparison = compare_recordings(recording(TinyRun()), recording(TinyRun()), steps={7})
    assert comparison.verdict is Verdict.INCOMPARABLE
    assert comparison.not_compared == (
        "both recordings have step 0, and not --steps 7; ask for steps that they have, or record both with --steps 7",
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rule": "errormodel"}, "rule 'errormodel': choose one of error-model, fixed"),
        ({"rule": None}, "rule None: choose one of"),
        ({"steps": "0:2"}, "steps is '0:2'; give numbers of steps"),
        ({"steps": 1}, "steps is 1; give numbers of steps"),
        ({"steps": ["0"]}, "steps is '0', of type str; give a whole number"),
        ({"steps": [-1]}, "steps is -1; give a whole number of at least 0"),
        ({"memory_bytes": -1}, "memory_bytes is -1; give a whole number of at least"),
        ({"candidate": 5}, "candidate is of type int; give a path, or what lockstep.open returns"),
        ({"candidate": ""}, "candidate is ''; give a path"),
        ({"calibration": 5}, "calibration is of type int"),
        ({"noise": 5}, "noise is of type int"),
        ({"mapping": 5}, "mapping is 5, of type int; give a path"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    given = {"reference": recording(TinyRun()), "candidate": recording(TinyRun()), **options}
    with pytest.raises(UsageError, match=re.escape(sentence)):
        compare_recordings(**given)


def test_a_rule_may_be_given_by_its_name() -> None:
    run = TinyRun()
    for rule in Rule:
        comparison = compare_recordings(recording(run), recording(run), rule=rule.value)
        assert comparison.judged_by == rule.value


@pytest.mark.parametrize("path", [5, None, b"ref", ""])
def test_what_is_no_path_is_not_opened(path: Any) -> None:
    with pytest.raises(UsageError, match="give a path"):
        open_recording(path)
