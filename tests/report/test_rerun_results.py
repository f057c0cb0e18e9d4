"""How far a re-run result is off, and what could not be run again, in the words of every verb."""

from __future__ import annotations

import math

import pytest

from lockstep.replay.calls.held_results import Held
from lockstep.report.paragraphs import Page
from lockstep.report.rerun_results import add_refusals, figures, refusals_json


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (
            Held("recorded", 0.0023, 2.6e-6, 884.6, 19294.0),
            "off by rel 0.0023 (1.93e+04 eps), allowed 2.6e-06: 880 times what is allowed",
        ),
        (
            Held("cpu", 1.6e-7, 2.4e-7, 0.67, 1.31),
            "off by rel 1.6e-07 (1.31 eps), allowed 2.4e-07: sound",
        ),
        (
            Held("recorded", math.inf, 2.4e-7, math.inf, math.inf),
            "inf or NaN stands where double precision gives a number, or the other way round",
        ),
        (
            Held("recorded", 0.003, 0.004, 16.5, 0.4, "36% of its elements are misrounded"),
            "off by rel 0.003 (0.4 eps), allowed 0.004; 36% of its elements are misrounded: 16 times what is allowed",
        ),
        (Held("recorded", 0.0, 0.0, 0.0, math.nan), "sound"),
        (
            Held("recorded", 0.25, 0.0, math.inf, math.nan),
            "25.00% of its elements are not what the operator gives for its inputs",
        ),
        (
            Held("recorded", math.inf, 0.0, math.inf, math.nan),
            "it is not what the operator gives for its inputs",
        ),
    ],
)
def test_how_far_a_result_is_off_is_said_with_what_it_may_be(held: Held, words: str) -> None:
    assert figures(held) == words


def test_refusals_are_told_by_reason_the_most_first() -> None:
    # given two operators refused for one reason, and one for another; and (the twin) none
    refusals = {
        ("bernoulli", "it draws"): 1,
        ("rand", "it draws"): 2,
        ("mine", "is no operator"): 2,
    }
    text, nothing = Page(), Page()
    # when they are shown
    add_refusals(text, "Not judged", refusals)
    add_refusals(nothing, "Not judged", {})
    # then
    assert (
        text.plain == "\nNot judged\n  3: it draws (rand, bernoulli)\n  2: is no operator (mine)\n"
    )
    assert nothing.plain == ""
    assert refusals_json(refusals)[0] == {"op": "bernoulli", "reason": "it draws", "count": 1}


def test_many_reasons_end_with_a_count() -> None:
    text = Page()
    add_refusals(text, "Not judged", {("op", f"reason {number}"): 1 for number in range(11)})
    assert text.plain.endswith("and 3 more reasons (--json lists them)\n")
