"""The ledger keeps what was said of two tensors, and who lies behind it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from made_steps import Run, met

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Evidence, Kind, Metrics, Outcome, Pair
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import Role
from lockstep.judge.protocol import AGREES, MEANINGLESS, OPEN, Judgement
from lockstep.locate.flow.ledger import (
    Ledger,
    State,
    agreeing,
    floor_of,
    kind_of,
)
from lockstep.locate.flow.words import agreement_clause, settled_reason

WRONG = Judgement(1e-6, 1e-7, beyond_floor=True, unexplained=True)


def ledger_of(off: float, *, kept: bool = True) -> tuple[Ledger, AlignedStep, Pair]:
    """A tensor that two calls of each run see, off by a relative distance in the candidate."""
    value = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    runs = []
    for factor in (1.0, 1.0 + off):
        run = Run({"x": np.float32(factor) * value, "y": value, "z": value + 1})
        run.call("torch.tanh", ["y"], ["x"])
        run.call("torch.sigmoid", ["x"], ["z"])
        runs.append(run)
    ledger = Ledger(read_tensors=kept)
    step = met(*runs, ledger)
    return ledger, step, step.aligned[0].complete(Role.OUTPUT)[0]


@pytest.mark.parametrize("kept", [True, False], ids=["tensors", "sketch"])
def test_contents_are_measured_once_and_told_of_every_record(kept: bool) -> None:
    # given a tensor that one call makes and another takes
    ledger, step, made = ledger_of(0.01, kept=kept)
    taken = step.aligned[1].complete(Role.INPUT)[0]
    # when both records are measured
    first, again = ledger.measure(made), ledger.measure(taken)
    # then the numbers are the same, each with its own pair
    assert first.metrics is again.metrics
    assert (first.pair, again.pair) == (made, taken)
    assert first.relative == pytest.approx(0.01, rel=0.01 if kept else 0.5)
    assert ledger.measure(made) is first


def test_an_earlier_word_stands() -> None:
    # given a pair that an origin was found at
    ledger, step, made = ledger_of(0.01)
    measured = ledger.measure(made)
    first = State(measured, WRONG, tainted=True, outcome=Outcome.DIFFER)
    ledger.remember(first)
    # when the same contents are settled at the next record
    taken = step.aligned[1].complete(Role.INPUT)[0]
    ledger.remember(agreeing(ledger.measure(taken)))
    # then what was said first is known of them, from either side
    assert ledger.state(taken) is first
    assert made.reference is not None
    assert made.candidate is not None
    assert ledger.partner_of_reference(made.reference.content.id) is first
    assert ledger.partner_of_candidate(made.candidate.content.id) is first
    assert ledger.any_tainted
    assert ledger.any_noise
    assert ledger.tainted(ledger.measure(taken))


def test_equal_tensors_hand_nothing_on() -> None:
    # given equal contents that are said to lie behind an origin, and to be open
    ledger, _, made = ledger_of(0.0)
    measured = ledger.measure(made)
    ledger.remember(State(measured, OPEN, tainted=True, outcome=Outcome.INCOMPARABLE))
    # then nothing that is computed from them does
    assert measured.equal
    assert not ledger.tainted(measured)
    assert not ledger.is_open(measured)
    assert not ledger.any_noise


def test_what_was_not_met_is_not_known() -> None:
    ledger, _, made = ledger_of(0.01)
    assert ledger.state(made) is None
    assert ledger.partner_of_reference(0) is None
    assert not ledger.tainted(ledger.measure(made))
    assert [ledger.knows_step(step) for step in (-1, 0, 1)] == [True, True, False]


def test_a_finding_becomes_one_more_effect_of_a_known_cause() -> None:
    # given two findings
    ledger, _, made = ledger_of(0.01)
    state = State(ledger.measure(made), WRONG, tainted=True, outcome=Outcome.DIFFER)
    first = ledger.report(state, "wrong", inherited=False)
    second = ledger.report(state, "wrong", inherited=False)
    # when the cause of the first turns out to be known
    ledger.repeat(first)
    # then it alone is inherited
    assert [finding.inherited for finding in ledger.findings] == [True, False]
    assert ledger.findings[1] is second
    assert first.kind is Kind.FAULT


@pytest.mark.parametrize(
    ("state", "inherited", "kind"),
    [
        ((AGREES, Outcome.AGREE), False, Kind.NOISE),
        ((WRONG, Outcome.DIFFER), False, Kind.FAULT),
        ((WRONG, Outcome.DIFFER), True, Kind.INHERITED),
        ((OPEN, Outcome.INCOMPARABLE), False, None),
        ((Judgement.wrong(Kind.RANDOM, "draws"), Outcome.DIFFER), True, Kind.RANDOM),
    ],
)
def test_a_difference_is_named_in_one_word(
    state: tuple[Judgement, Outcome], inherited: bool, kind: Kind | None
) -> None:
    ledger, _, made = ledger_of(0.01)
    judgement, outcome = state
    found = State(ledger.measure(made), judgement, outcome=outcome)
    assert kind_of(found, inherited=inherited) is kind


def test_no_difference_has_no_kind_and_says_so() -> None:
    ledger, _, made = ledger_of(0.0)
    equal = agreeing(ledger.measure(made))
    assert kind_of(equal, inherited=False) is None
    assert agreement_clause(equal.measured) == Clause(About.EQUAL, "bitwise equal")


@pytest.mark.parametrize(
    ("judgement", "outcome", "about", "words"),
    [
        (WRONG, Outcome.DIFFER, About.INHERITED, "inherited from an earlier site"),
        (
            OPEN,
            Outcome.INCOMPARABLE,
            About.OPEN,
            "rel 0.0099: could not be judged: its inputs differ too much for any bound, or were not judged themselves",
        ),
        (AGREES, Outcome.AGREE, About.WITHIN, "rel 0.0099, within its tolerance"),
    ],
)
def test_a_settled_pair_says_why(
    judgement: Judgement, outcome: Outcome, about: About, words: str
) -> None:
    ledger, _, made = ledger_of(0.01)
    reason = settled_reason(ledger.measure(made), judgement, outcome)
    assert [(one.about, one.words) for one in reason.clauses] == [(about, words)]


@pytest.mark.parametrize(("off", "outcome"), [(1e-4, Outcome.AGREE), (0.5, Outcome.INCOMPARABLE)])
def test_what_changed_unseen_agrees_as_far_as_sound_training_leaves_it(
    off: float, outcome: Outcome
) -> None:
    ledger, _, made = ledger_of(off)
    assert ledger.drifted(ledger.measure(made)).outcome is outcome


@pytest.mark.parametrize(
    ("judgement", "floor"),
    [
        (WRONG, 1e-7),
        (Judgement(1.0, 2e-7, beyond_floor=True, unexplained=False), 2e-7),
        (Judgement(1e-6, 1e-12, beyond_floor=True, unexplained=False), 2.0**-24),
        (Judgement.follows(), 2.0**-24),
        (Judgement.wrong(Kind.FAULT, "it moved them elsewhere"), 2.0**-24),
        (MEANINGLESS, math.inf),
    ],
    ids=[
        "an origin",
        "inherited",
        "below what is representable",
        "moved",
        "moved wrongly",
        "waste",
    ],
)
def test_a_pair_keeps_the_floor_that_it_was_judged_by(judgement: Judgement, floor: float) -> None:
    # given two tensors that differ, and what a judge says of them
    ledger, _, made = ledger_of(0.01)
    state = State(ledger.measure(made), judgement, outcome=Outcome.DIFFER)
    # when that is reported
    finding = ledger.report(state, Reason("it differs"), inherited=not judgement.unexplained)
    # then the floor stands beside the tolerance, whatever the inputs widen that to
    assert finding.floor == floor == floor_of(state)


@pytest.mark.parametrize(
    "judgement",
    [AGREES, OPEN, Judgement(math.nan, 0.0, True, True), Judgement(math.nan, math.nan, True, True)],
    ids=["not asked", "open", "the size of an update", "the fixed rule"],
)
def test_where_nobody_judged_by_a_floor_there_is_none(judgement: Judgement) -> None:
    ledger, _, made = ledger_of(0.01)
    assert math.isnan(floor_of(State(ledger.measure(made), judgement, outcome=Outcome.DIFFER)))


def test_equal_tensors_have_no_floor() -> None:
    ledger, _, made = ledger_of(0.0)
    assert math.isnan(floor_of(agreeing(ledger.measure(made))))


def test_whole_numbers_of_which_only_equal_extremes_are_known() -> None:
    # given labels of a dump that has their largest and smallest alone, equal in both runs, and some that differ
    ledger, _, made = ledger_of(0.0)
    ends = replace(ledger.measure(made), floating=False, equal=False, difference=math.nan)
    for apart, words in (
        (0.0, "its smallest and largest values are equal"),
        (1.0, "chosen differently, from"),
    ):
        metrics = Metrics(Evidence.STATISTICS, max_abs=apart)
        outcome = Outcome.INCOMPARABLE if apart == 0.0 else Outcome.AGREE
        # then no difference is told of the first
        assert settled_reason(replace(ends, metrics=metrics), AGREES, outcome).startswith(words)
