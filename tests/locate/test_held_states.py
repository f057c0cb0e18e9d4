"""What a process holds beside its recorded steps: what makes two runs part, and what is of no use."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from lockstep.core.finding import Kind
from lockstep.core.records import Content, Statistics
from lockstep.core.site import Phase, Role
from lockstep.core.sketch import sketch_of
from lockstep.core.states import Moment, Standing, StateRecord
from lockstep.locate.ends.held_states import held_states
from lockstep.locate.ends.training_sides import Side, States, side_of
from lockstep.store.reader import RankRecording

Values = npt.NDArray[np.float32]
DRAWN = np.random.default_rng(0)
BEGIN = DRAWN.standard_normal(400).astype(np.float32)
LATER = BEGIN + 0.01 * DRAWN.standard_normal(400).astype(np.float32)


def content(values: Values) -> Content:
    sketch, norm = sketch_of(values), float(np.linalg.norm(values.astype(np.float64)))
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    statistics = Statistics(0.0, 0.0, 0.0, norm, 0, 0, 0)
    return Content(0, str(values.dtype), values.shape, "cpu", digest, statistics, lambda: sketch)


def states(moment: Moment, step: int, **named: tuple[Standing, Values]) -> States:
    found = {}
    for name, (standing, values) in named.items():
        full = f"{name}.weight"
        held = content(values)
        state = StateRecord(moment, step, name, full, Role.PARAM, standing, True, held)
        found[Role.PARAM, full] = state
    return found


def side(
    first: Values, last: Values, standing: Standing = Standing.BESIDE, name: str = "ema"
) -> Side:
    """A run of two recorded steps that holds something."""
    return Side(
        2,
        (),
        states(Moment.FIRST, 1, **{name: (standing, first)}),
        states(Moment.LAST, 2, **{name: (standing, last)}),
    )


def test_what_is_equal_at_both_moments_is_nothing_to_tell() -> None:
    one = side(BEGIN, LATER)
    found = held_states("rank0", one, one, equal=True)
    assert (found.origins, found.unclear, found.notes) == ((), (), ())


def test_what_differs_behind_the_first_step_is_set_up_otherwise() -> None:
    found = held_states("rank0", side(BEGIN, LATER), side(2 * BEGIN, LATER), equal=True)
    (origin,) = found.origins
    assert (origin.kind, origin.phase, origin.step) == (Kind.SETUP, Phase.INIT, 0)
    assert origin.reason == "ema.weight, held beside the training, differs after step 0 (rel 0.53)"


def test_what_differs_behind_the_last_step_alone_was_changed_out_of_sight() -> None:
    found = held_states("rank0", side(BEGIN, LATER), side(BEGIN, 1.1 * LATER), equal=True)
    (origin,) = found.origins
    assert (origin.kind, origin.phase, origin.step) == (Kind.FAULT, Phase.OPTIMIZER, 1)
    assert "changed by no recorded call" in origin.reason


@pytest.mark.parametrize("standing", [Standing.TRAINED, Standing.MET])
def test_what_recorded_steps_do_not_show_of_the_training_counts_too(standing: Standing) -> None:
    candidate = side(BEGIN, 1.1 * LATER, standing)
    assert held_states("rank0", side(BEGIN, LATER, standing), candidate, equal=True).origins
    # its twin: where the recorded steps differ, they are what is judged
    assert not held_states("rank0", side(BEGIN, LATER, standing), candidate, equal=False).origins


def test_a_rounding_of_what_moves_little_is_unclear() -> None:
    # given a mean of weights that has moved by some ten roundings, as with a decay of 0.9999
    moved = BEGIN * np.float32(1 + 2.0**-20)
    rounded = moved * np.float32(1 + 2.0**-23)
    found = held_states("rank0", side(BEGIN, moved), side(BEGIN, rounded), equal=True)
    assert not found.origins
    assert found.unclear[0].startswith("rank0: ema.weight after step 1")


def test_a_rounding_of_what_moves_far_is_noted() -> None:
    # given one that has moved by a hundredth: no share of that way may be a rounding
    rounded = LATER * np.float32(1 + 2.0**-23)
    found = held_states("rank0", side(BEGIN, LATER), side(BEGIN, rounded), equal=True)
    assert (found.origins, found.unclear) == ((), ())
    assert found.notes == ("ema.weight differs at the end by no more than rounding",)


def test_noise_of_the_steps_may_be_in_what_follows_them() -> None:
    noise = np.float32(1 + 1e-5)
    found = held_states(
        "rank0", side(BEGIN, LATER), side(noise * BEGIN, noise * LATER), equal=False
    )
    assert (found.origins, found.unclear) == ((), ())
    # but not as much as another beginning
    assert held_states("rank0", side(BEGIN, LATER), side(-BEGIN, LATER), equal=False).origins


def test_what_follows_may_be_as_far_off_as_what_is_trained() -> None:
    def run(far: float) -> Side:
        moved = np.float32(1 + far) * LATER
        trained = states(Moment.LAST, 2, net=(Standing.TRAINED, moved))
        one = side(BEGIN, moved)
        return replace(one, last=one.last | trained)

    assert not held_states("rank0", run(0.0), run(0.01), equal=False).origins
    # its twin, whose training is no further off than rounding makes it
    trained = states(Moment.LAST, 2, net=(Standing.TRAINED, LATER))
    sound = replace(run(0.01), last=run(0.01).last | trained)
    assert held_states("rank0", run(0.0), sound, equal=False).origins


def test_what_never_moves_and_is_no_copy_is_noted_alone() -> None:
    found = held_states("rank0", side(BEGIN, BEGIN), side(LATER, LATER), equal=True)
    assert (found.origins, found.unclear) == ((), ())
    assert "ema is held beside the training and differs" in found.notes[0]


def test_a_copy_of_what_is_trained_is_of_use_though_it_never_moves() -> None:
    reference = side(BEGIN, BEGIN, name="target")
    copied = states(Moment.FIRST, 1, net=(Standing.TRAINED, BEGIN))
    reference = replace(reference, first=reference.first | copied)
    assert held_states("rank0", reference, side(LATER, LATER, name="target"), equal=True).origins


@pytest.mark.parametrize("rounding", [0.0, 1e-6])
def test_what_the_two_hold_alike_by_other_names_is_compared(rounding: float) -> None:
    # Given a mean of weights that either run keeps in a class of its own, begun alike
    runs = side(BEGIN, LATER), side(BEGIN, LATER * np.float32(1 + rounding), name="averaged")
    # When they are equal later, or a rounding apart beside how far they have gone
    found = held_states("rank0", *runs, equal=True)
    # Then neither is told as one run's alone
    assert (found.origins, found.unclear) == ((), ())


@pytest.mark.parametrize(
    ("first", "last"), [(BEGIN, LATER * 1.001), (BEGIN * 1.001, LATER), (BEGIN[:200], LATER[:200])]
)
def test_what_differs_by_other_names_stays_one_run_s_alone(first: Values, last: Values) -> None:
    runs = side(BEGIN, LATER), side(first.astype("f4"), last.astype("f4"), name="averaged")
    found = held_states("rank0", *runs, equal=True)
    assert [str(one).split(" changes")[0] for one in found.unclear] == [
        "rank0: ema",
        "rank0: averaged",
    ]


@pytest.mark.parametrize("equal", [True, False])
def test_what_one_run_alone_holds_and_changes_is_said(equal: bool) -> None:
    found = held_states("rank0", side(BEGIN, LATER), Side(2), equal=equal)
    assert found.unclear == ("rank0: ema changes beside the training in the reference alone",)
    # its twin: what never changes, as an old copy that Python has not collected yet
    assert held_states("rank0", side(BEGIN, BEGIN), Side(2), equal=equal).unclear == ()


def test_of_what_was_made_before_only_what_moves_counts_by_its_order() -> None:
    # given a process that trained before it recorded: its models lie about, and one of them goes on to follow
    def rank(left: str, follows: str, last: Values) -> SimpleNamespace:
        held = [
            *states(Moment.FIRST, 1, **{left: (Standing.BEFORE, 3 * BEGIN)}).values(),
            *states(Moment.FIRST, 1, **{follows: (Standing.BEFORE, BEGIN)}).values(),
            *states(Moment.LAST, 2, **{left: (Standing.BEFORE, 3 * BEGIN)}).values(),
            *states(Moment.LAST, 2, **{follows: (Standing.BEFORE, last)}).values(),
        ]
        manifest = SimpleNamespace(trained=2, ended_by="", stopped_because="", not_seen=[])
        return SimpleNamespace(
            states=held,
            losses=(),
            held=(),
            held_settings=None,
            manifest=manifest,
            is_closed=True,
        )

    one = side_of(cast(RankRecording, rank("Net", "Net_1", LATER)))
    other = side_of(cast(RankRecording, rank("Net_7", "Net_2", LATER)))
    found = held_states("rank0", one, other, equal=True)
    assert (found.origins, found.unclear, found.notes) == ((), (), ())
    # its twin: one that follows otherwise
    other = side_of(cast(RankRecording, rank("Net_7", "Net_2", 1.1 * LATER)))
    assert held_states("rank0", one, other, equal=True).origins


def test_what_left_first_stands_before_what_follows_the_training() -> None:
    # Given a teacher whose mean was never updated, and whose weights follow a student that is off by noise
    def run(noise: float, mean: Values) -> Side:
        moved = np.float32(1 + noise) * LATER
        held = states(
            Moment.LAST,
            2,
            net=(Standing.TRAINED, moved),
            **{"ema.a": (Standing.BESIDE, moved), "ema.mean": (Standing.BESIDE, mean)},
        )
        first = states(Moment.FIRST, 1, **{"ema.a": (Standing.BESIDE, BEGIN)})
        return Side(2, (), first, held)

    found = held_states("rank0", run(0.0, LATER), run(1e-4, BEGIN[::-1].copy()), equal=False)
    # Then the mean is named, and the weights are counted
    (origin,) = found.origins
    assert origin.tensor == "ema.mean.weight"
    assert origin.reason.startswith("ema.mean.weight, held beside the training, differs after step")
    assert origin.reason.endswith("1 more differ by no more than what they follow does")
