"""Whether a difference in set-up explains an origin: said where it is known, and left open elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_training import Loop, against_sound, compared

from lockstep.core.finding import Comparison, Kind, SetupDifference, Verdict
from lockstep.core.site import Phase
from lockstep.core.text import times
from lockstep.locate.setups.explains_origin import Answer, set_up_answers

THREADS = SetupDifference("threads", "1", "2")
VERSION = SetupDifference("torch", "2.13.0", "2.12.0")
SEED = SetupDifference("seed (torch)", "0", "1", "seed")


def answers(found: Comparison, *more: SetupDifference) -> dict[str, Answer]:
    told = replace(found, setup=(*found.setup, *more))
    return {one.difference.name: one.answer for one in set_up_answers(told)}


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (Loop(frozen="blocks.0", steps=3), "frozen parameters"),
        (Loop(tied=True), "tied"),
        (Loop(optimizer="Adam"), "optimizer"),
    ],
    ids=["frozen", "tied", "another optimizer"],
)
def test_what_the_verdict_names_explains_it(candidate: Loop, name: str) -> None:
    # given a candidate whose set-up is its one cause, in which nothing else is known to differ
    found = against_sound(candidate)
    # then that explains it, and a version beside it is left open
    assert answers(found, VERSION) | {name: Answer.YES} == answers(found, VERSION)
    assert answers(found, VERSION)["torch"] is Answer.UNKNOWN


def test_a_setting_that_is_named_explains_it() -> None:
    # given another probability of a dropout, which is set-up and origin
    found = against_sound(Loop("other dropout"))
    told = [one for one in set_up_answers(found) if one.difference.name.startswith("p of ")]
    assert [one.answer for one in told] == [Answer.YES]
    # and its twin that says another number is not what is named
    other = SetupDifference("p of blocks.1.drop", "0.1", "0.7")
    assert answers(replace(found, setup=(other,)))[other.name] is Answer.UNKNOWN


def test_roundings_in_another_order_explain_no_fault() -> None:
    # given a residual that is missing
    found = against_sound(Loop("no residual"))
    assert found.origins[0].kind is Kind.FAULT
    # then threads do not explain it, by how far it is beyond what rounding makes
    (told,) = set_up_answers(replace(found, setup=(THREADS,)))
    origin = found.origins[0].finding
    assert told.answer is Answer.NO
    assert times(origin.difference / origin.floor) in told.why
    # and where the floor is not known, or the candidate is merely the better one, it is left open
    for changed in (
        replace(found.origins[0], finding=replace(origin, floor=float("nan"))),
        replace(found.origins[0], kind=Kind.MORE_ACCURATE),
    ):
        assert answers(replace(found, origins=(changed,)), THREADS)["threads"] is Answer.UNKNOWN


def test_seeds_explain_random_streams_and_nothing_that_draws_none() -> None:
    found = against_sound(Loop("no residual"))
    origin = found.origins[0]
    assert answers(found, SEED)[SEED.name] is Answer.NO
    for changed, answer in (
        (replace(origin, kind=Kind.RANDOM), Answer.YES),
        (replace(origin, op="torch.nn.functional.dropout"), Answer.UNKNOWN),
        (replace(origin, phase=Phase.INIT), Answer.UNKNOWN),
        (replace(origin, phase=Phase.DATA), Answer.UNKNOWN),
    ):
        assert answers(replace(found, origins=(changed,)), SEED)[SEED.name] is answer


def test_an_update_explains_nothing_that_comes_before_it() -> None:
    found = against_sound(Loop("no residual"))
    optimizer = SetupDifference("optimizer", "AdamW", "Adam")
    assert answers(found, optimizer)["optimizer"] is Answer.NO
    after = replace(found.origins[0], phase=Phase.OPTIMIZER)
    assert answers(replace(found, origins=(after,)), optimizer)["optimizer"] is Answer.UNKNOWN


def test_without_an_origin_there_is_nothing_to_explain() -> None:
    found = compared(Loop(), Loop())
    assert found.verdict is Verdict.AGREE
    assert answers(found, THREADS, VERSION) == {"threads": Answer.NO, "torch": Answer.NO}
    # and of runs that differ without one it is not said
    differs = replace(found, verdict=Verdict.DIVERGED)
    assert answers(differs, THREADS) == {"threads": Answer.UNKNOWN}
